// Peer: microcosts of Go. One line of JSON a case, as micro.hpp says.
// Usage: GOMAXPROCS=1 micro_go one-core | GOMAXPROCS=2 micro_go two-cores | micro_go parked COUNT
package main

import (
	"bufio"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

type clock func() float64

// cpu is the CPU time of the process in ns.
func cpu() float64 {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		panic(err)
	}
	return float64(u.Utime.Nano() + u.Stime.Nano())
}

var started = time.Now()

func wall() float64 { return float64(time.Since(started).Nanoseconds()) }

func report(name string, value float64, unit string) {
	fmt.Printf("{\"case\": %q, \"value\": %.3f, \"unit\": %q}\n", name, value, unit)
}

// measure reports the best time of an iteration out of three runs of body, which does n of them.
func measure(name string, now clock, n int, body func(n int)) {
	best := 1e18
	for repetition := 0; repetition < 3; repetition++ {
		start := now()
		body(n)
		best = min(best, (now()-start)/float64(n))
	}
	report(name, best, "ns")
}

func yield(n int) {
	stop := false
	var other sync.WaitGroup
	other.Add(1)
	go func() {
		for !stop {
			runtime.Gosched()
		}
		other.Done()
	}()
	for i := 0; i < n/2; i++ {
		runtime.Gosched()
	}
	stop = true
	other.Wait()
}

func spawnJoin(n int) {
	var group sync.WaitGroup
	for i := 0; i < n; i++ {
		group.Add(1)
		go group.Done()
		group.Wait()
	}
}

func spawnJoinBatch(n int) {
	const batch = 1000
	var group sync.WaitGroup
	for i := 0; i < n/batch; i++ {
		group.Add(batch)
		for j := 0; j < batch; j++ {
			go group.Done()
		}
		group.Wait()
	}
}

func channelRoundTrip(n int) {
	ping, pong := make(chan int), make(chan int)
	go func() {
		for value := range ping {
			pong <- value
		}
	}()
	for i := 0; i < n; i++ {
		ping <- i
		<-pong
	}
	close(ping)
}

func mutexLockUnlock(n int) {
	var mutex sync.Mutex
	for i := 0; i < n; i++ {
		mutex.Lock()
		mutex.Unlock()
	}
}

// timerAddCancel arms and disarms one more timer among a thousand.
func timerAddCancel(n int) {
	others := make([]*time.Timer, 1000)
	for i := range others {
		others[i] = time.AfterFunc(time.Hour, func() {})
		defer others[i].Stop()
	}
	for i := 0; i < n; i++ {
		time.AfterFunc(time.Hour, func() {}).Stop()
	}
}

// crossThread keeps the two goroutines on two OS threads, as two hubs are.
func crossThread(n int) {
	ping, pong := make(chan int), make(chan int)
	go func() {
		runtime.LockOSThread()
		for value := range ping {
			pong <- value
		}
	}()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	for i := 0; i < n; i++ {
		ping <- i
		<-pong
	}
	close(ping)
}

// memory is the process's resident memory and page tables in bytes.
func memory() float64 {
	file, err := os.Open("/proc/self/status")
	if err != nil {
		panic(err)
	}
	defer file.Close()
	bytes := 0.0
	for lines := bufio.NewScanner(file); lines.Scan(); {
		words := strings.Fields(lines.Text())
		if words[0] == "VmRSS:" || words[0] == "VmPTE:" {
			kib, _ := strconv.ParseFloat(words[1], 64)
			bytes += kib * 1024
		}
	}
	return bytes
}

func parked(count int) {
	never := make(chan int)
	var ready sync.WaitGroup
	runtime.GC()
	before := memory()
	ready.Add(count)
	for i := 0; i < count; i++ {
		go func() {
			ready.Done()
			<-never
		}()
	}
	ready.Wait()
	report("parked fiber", (memory()-before)/float64(count), "bytes")
}

func main() {
	mode := ""
	if len(os.Args) > 1 {
		mode = os.Args[1]
	}
	switch {
	case mode == "one-core":
		measure("yield", cpu, 600_000, yield)
		measure("spawn+join", cpu, 100_000, spawnJoin)
		measure("spawn+join, 1000 at once", cpu, 100_000, spawnJoinBatch)
		measure("channel round trip", cpu, 100_000, channelRoundTrip)
		measure("mutex lock+unlock", cpu, 1_000_000, mutexLockUnlock)
		measure("timer add+cancel", cpu, 200_000, timerAddCancel)
	case mode == "two-cores":
		measure("cross-hub round trip", wall, 1_000, crossThread)
	case mode == "parked" && len(os.Args) > 2:
		count, err := strconv.Atoi(os.Args[2])
		if err != nil {
			panic(err)
		}
		parked(count)
	default:
		os.Exit(64)
	}
}
