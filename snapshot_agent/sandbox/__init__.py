"""What a worker lives in: namespaces, cgroup, root file system; and the helper that enters them."""
