"""Starting processes and watching them: `up`, `worker`, `broker`, `demo`, `topics`, `monitor`."""
