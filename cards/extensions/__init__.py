"""Extensions at declared points of a step: observers look, interceptors change what is computed."""
