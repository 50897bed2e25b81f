"""Run folders and the executors that fill them; files, images, caches and processes. Knows no benchmark."""
