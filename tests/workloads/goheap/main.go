// A Go program with a large heap: it is filled, given back to the system, and allocated again; new memory must be zero
// and old memory must be what it was, in goroutines and maps too.
package main

import (
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"sync"
	"time"
)

const (
	blockSize = 1 << 20
	kept      = 48
	garbage   = 96
	workers   = 8
)

type node struct {
	next  *node
	value uint64
	data  [200]byte
}

var different bool

func bad(format string, values ...any) {
	different = true
	fmt.Printf("BAD "+format+"\n", values...)
}

func pattern(seed, i int) byte {
	x := uint64(seed+1)*0x9E3779B97F4A7C15 + uint64(i)*0xD1B54A32D192ED03
	x ^= x >> 29
	return byte(x * 0xBF58476D1CE4E5B9 >> 56)
}

func fill(block []byte, seed int) {
	for i := range block {
		block[i] = pattern(seed, i)
	}
}

func verify(what string, block []byte, seed int) {
	for i, b := range block {
		if b != pattern(seed, i) {
			bad("%s %d: byte %d is %02x", what, seed, i, b)
			return
		}
	}
}

func isZero(what string, block []byte) {
	for i, b := range block {
		if b != 0 {
			bad("%s: new memory holds %02x at %d", what, b, i)
			return
		}
	}
}

func chain(length int) *node {
	var head *node
	for i := 0; i < length; i++ {
		n := &node{next: head, value: uint64(i)}
		fill(n.data[:], i)
		head = n
	}
	return head
}

func checkChain(head *node, length int) {
	for i := length - 1; i >= 0; i-- {
		if head == nil || head.value != uint64(i) {
			bad("chain at %d", i)
			return
		}
		verify("chain", head.data[:], i)
		head = head.next
	}
}

func awaitGo() {
	for {
		if _, err := os.Stat("go"); err == nil {
			return
		}
		time.Sleep(20 * time.Millisecond)
	}
}

func main() {
	var blocks, waste [][]byte
	for i := 0; i < kept; i++ {
		block := make([]byte, blockSize)
		fill(block, i)
		blocks = append(blocks, block)
	}
	for i := 0; i < garbage; i++ {
		block := make([]byte, blockSize)
		fill(block, 1000+i)
		waste = append(waste, block)
	}
	head := chain(20000)
	table := map[string]int{}
	for i := 0; i < 20000; i++ {
		table[fmt.Sprint("key ", i)] = i * i
	}
	start, results := make(chan int), make(chan int, workers)
	var lock sync.Mutex
	sum := 0
	for w := 0; w < workers; w++ {
		go func(w int) {
			var stack [8192]byte
			fill(stack[:], w)
			n := <-start
			verify("goroutine's stack", stack[:], w)
			lock.Lock()
			sum += n
			lock.Unlock()
			results <- w
		}(w)
	}
	queue := make(chan []byte, 4)
	queue <- blocks[3]
	ticker := time.NewTicker(50 * time.Millisecond)
	if len(waste) != garbage {
		os.Exit(2)
	}
	fmt.Println("ready")
	awaitGo()

	for i, block := range blocks {
		verify("block", block, i)
	}
	for i, block := range waste {
		verify("block that will be garbage", block, 1000+i)
	}
	checkChain(head, 20000)
	for i := 0; i < 20000; i++ {
		if table[fmt.Sprint("key ", i)] != i*i {
			bad("map at %d", i)
			break
		}
	}
	waste = nil
	for round := 0; round < 4; round++ {
		runtime.GC()
		debug.FreeOSMemory()
		var fresh [][]byte
		for i := 0; i < garbage; i++ {
			block := make([]byte, blockSize)
			isZero(fmt.Sprint("round ", round), block)
			fill(block, 2000+i)
			fresh = append(fresh, block)
		}
		for size := 16; size <= 32<<10; size *= 2 {
			for i := 0; i < 100; i++ {
				small := make([]byte, size)
				isZero(fmt.Sprint("round ", round, " size ", size), small)
				fill(small, i)
			}
		}
		for i, block := range fresh {
			verify("fresh block", block, 2000+i)
		}
		for i, block := range blocks {
			verify("block, later", block, i)
		}
	}
	checkChain(head, 20000)
	for w := 0; w < workers; w++ {
		start <- w + 1
	}
	for w := 0; w < workers; w++ {
		<-results
	}
	if sum != workers*(workers+1)/2 {
		bad("goroutines added up to %d", sum)
	}
	verify("block in a channel", <-queue, 3)
	select {
	case <-ticker.C:
	case <-time.After(5 * time.Second):
		bad("the ticker does not tick")
	}
	if different {
		os.Exit(1)
	}
	fmt.Println("OK")
}
