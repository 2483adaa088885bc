module hotstart.dev/goheap

go 1.19
