"""Real files and the threads that write them: what `logstore.interfaces.FileSystem` is on an operating system."""
