"""One file a step. What has been released is not edited."""
