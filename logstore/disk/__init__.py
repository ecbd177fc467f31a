"""Real files and the threads that write them: `logstore.interfaces.FileSystem` on an operating system."""
