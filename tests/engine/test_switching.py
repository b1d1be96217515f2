"""Models that take turns on one device: loading stays a small share of the time, and nobody waits for ever."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cards.wire import Weights
from engine.scheduling.switching import Device, Preference, Turns, Wish, absent, loading_s, prefer

TURNS = Turns(share=0.1, least_s=1.0, most_s=60.0)


def device(*resident: str, began: float = 0.0, **load_s: float | None) -> Device:
    weights = {f"{model}/dit": Weights(1000, seconds) for model, seconds in ({"a": 2.0, "b": 2.0} | load_s).items()}
    return Device(resident=[f"{model}/dit" for model in resident], weights=weights, began=began)


def wish(model: str, since: float = 0.0, seconds: float = 1.0, component: str = "dit") -> Wish:
    return Wish(model, (f"{model}/{component}",), since, seconds)


def test_what_is_loaded_goes_first() -> None:
    assert prefer(device("a"), [wish("b"), wish("a", 5.0)], 10.0, TURNS) == Preference(frozenset({"a"}))


def test_all_that_is_loaded_goes_first_whatever_model_it_is_of() -> None:
    assert prefer(device("a", "b"), [wish("b"), wish("a")], 10.0, TURNS).models == {"a", "b"}


def test_a_turn_ends_when_loading_the_next_is_a_small_share_of_it() -> None:
    here = device("a", began=100.0)
    wishes = [wish("a", 119.0), wish("b", 90.0)]

    assert prefer(here, wishes, 119.9, TURNS).models == {"a"}
    assert prefer(here, wishes, 120.0, TURNS) == Preference(frozenset({"b"}), frozenset({"b/dit"}), 2.0)


def test_a_turn_is_bounded_however_long_the_next_one_loads() -> None:
    here = device("a", b=1000.0)

    assert prefer(here, [wish("a"), wish("b")], TURNS.most_s, TURNS).models == {"b"}


def test_who_has_waited_longest_is_next() -> None:
    wishes = [wish("a", 50.0), wish("b", 2.0), wish("c", 1.0)]

    assert prefer(device("a", c=2.0), wishes, 100.0, TURNS).models == {"c"}


def test_a_turn_that_wants_nothing_is_over_at_once_and_the_best_bargain_is_next() -> None:
    wishes = [wish("b", since=0.0, seconds=1.0), wish("c", since=5.0, seconds=100.0)]

    assert prefer(device("a", c=2.0), wishes, 10.0, TURNS).models == {"c"}
    assert prefer(device("a"), [], 10.0, TURNS) == Preference()


def test_a_step_that_needs_another_component_of_the_model_whose_turn_it_is_waits_as_others_do() -> None:
    weights = {"a/dit": Weights(10, 2.0), "a/vae": Weights(10, 2.0)}
    here = Device(resident=("a/dit",), weights=weights, began=0.0)
    denoise, decode = wish("a", 5.0), wish("a", 1.0, component="vae")

    early = prefer(here, [denoise, decode], 6.0, TURNS)
    late = prefer(here, [denoise, decode], 20.0, TURNS)

    assert (early.goes_first(here, denoise), early.goes_first(here, decode)) == (True, False)
    assert (late.goes_first(here, denoise), late.goes_first(here, decode)) == (False, True)
    assert late.loads == {"a/vae"}


def test_what_has_never_been_loaded_is_priced_by_its_bytes() -> None:
    known = Device(resident=(), weights={"a/dit": Weights(100, 2.0), "b/dit": Weights(200)}, began=0.0)
    unknown = Device(resident=(), weights={"a/dit": Weights(2_000_000_000)}, began=0.0)

    assert loading_s(known, {"b/dit"}) == 4.0
    assert loading_s(unknown, {"a/dit"}) == 2.0


def test_a_component_that_has_no_weights_needs_no_loading() -> None:
    assert absent(device(), Wish("a", ("a/tokenizer",), 0.0)) == frozenset()


class Simulated:
    """A device with room for `room` components, and models that want it for all of the time."""

    def __init__(self, load_s: list[float], step_s: float, room: int) -> None:
        self.names = [f"m{index}" for index in range(len(load_s))]
        self.weights = {f"{name}/dit": Weights(1, seconds) for name, seconds in zip(self.names, load_s, strict=True)}
        self.since = dict.fromkeys(self.names, 0.0)
        self.resident: list[str] = []
        self.now = self.began = self.loading = self.longest_wait = 0.0
        self._step_s = step_s
        self._room = room

    def step(self, turns: Turns) -> None:
        here = Device(resident=tuple(self.resident), weights=self.weights, began=self.began)
        wishes = [wish(name, self.since[name], self._step_s) for name in self.names]
        preference = prefer(here, wishes, self.now, turns)
        chosen = min((one for one in wishes if preference.goes_first(here, one)), key=lambda one: one.since)
        self.longest_wait = max(self.longest_wait, self.now - chosen.since)
        if preference.loads:
            self._load(f"{chosen.model}/dit", preference.loading_s)
        self.now += self._step_s
        self.since[chosen.model] = self.now

    def _load(self, name: str, seconds: float) -> None:
        self.resident = [*self.resident, name][-self._room :]
        self.now += seconds
        self.loading += seconds
        self.began = self.now


loads = st.lists(st.floats(0.1, 20.0), min_size=2, max_size=5)


@settings(max_examples=25, deadline=None)
@given(loads, st.floats(0.5, 3.0), st.integers(1, 3))
def test_nobody_starves_and_loading_is_a_small_share(load_s: list[float], step_s: float, room: int) -> None:
    turns = Turns(share=0.1, least_s=0.5, most_s=1000.0)
    simulated = Simulated(load_s, step_s, room)
    while simulated.now < 600.0:
        simulated.step(turns)

    longest = max(turns.lasts(seconds) + seconds for seconds in load_s) + 2 * step_s
    assert simulated.longest_wait <= len(load_s) * longest
    assert simulated.loading / simulated.now < 0.1 + sum(load_s) / simulated.now


@pytest.mark.parametrize("share", [0.05, 0.2])
def test_the_share_is_what_loading_comes_to(share: float) -> None:
    simulated = Simulated([2.0, 2.0], 0.2, room=1)
    while simulated.now < 1000.0:
        simulated.step(Turns(share=share, least_s=0.1, most_s=1000.0))

    assert simulated.loading / simulated.now == pytest.approx(share / (1 + share), rel=0.05)
