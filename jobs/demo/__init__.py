"""The main job's data: real text that every installation has, in shards of several kinds, one of them damaged on purpose."""
