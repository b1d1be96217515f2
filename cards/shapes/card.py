"""The shapes model's card: a small text-to-video model trained in this repository on procedurally drawn clips."""

from cards.card import ComponentSpec, LoopSpec, ModelCard, Node, OutputSpec, ParitySpec, Program, Range, RecipeSpec

LATENT_FRAMES = 6
SCALE = 4
"""Pixels of the clip per pixel of the model."""

CARD = ModelCard(
    name="shapes",
    family="shapes",
    version="1",
    task="text_to_video",
    components={
        "text_encoder": ComponentSpec(kind="text_encoder", parameters=899_008),
        "transformer": ComponentSpec(kind="transformer", parameters=4_022_720),
        "vae": ComponentSpec(kind="vae", parameters=687_680),
    },
    loops={
        "encode_text": LoopSpec(semantics="shapes.encode_text/1", components=("text_encoder",)),
        "denoise": LoopSpec(semantics="shapes.flow_euler.cfg/1", components=("transformer", "vae")),
        "decode_vae": LoopSpec(semantics="shapes.decode_vae/1", components=("vae",)),
        "render": LoopSpec(semantics="shapes.render/1"),
    },
    recipe=RecipeSpec(
        method="flow_matching",
        data="procedural shapes, training.shapes.data",
        assumes_loop={"denoise": "shapes.flow_euler.cfg/1"},
        assumes_precision="float32",
        steps=Range(1, 100, 30),
        guidance=Range(0, 20, 3),
        shift=3.0,
    ),
    parity=ParitySpec(reference="training.shapes.sample", rung="C1"),
    output=OutputSpec(width=64 * SCALE, height=64 * SCALE, frames=24, fps=12),
    program=Program(
        nodes=(
            Node(name="encode", loop="encode_text", outputs=("text", "negative")),
            Node(
                name="denoise",
                loop="denoise",
                inputs={"text": "encode.text", "negative": "encode.negative"},
                outputs=("latent",),
            ),
            Node(name="decode", loop="decode_vae", inputs={"latent": "denoise.latent"}, outputs=("frames",)),
            Node(name="render", loop="render", inputs={"frames": "decode.frames"}),
        ),
        artifacts=("video.mp4", "contact_sheet.png"),
    ),
    prompt_limit=2000,
)
