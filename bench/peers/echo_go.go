// Peer: Go TCP echo, one goroutine a connection.
// Usage: GOMAXPROCS=1 echo_go PORT
package main

import (
	"log"
	"net"
	"os"
)

func echo(conn net.Conn) {
	defer conn.Close()
	buffer := make([]byte, 16384)
	for {
		n, err := conn.Read(buffer)
		if err != nil {
			return
		}
		if _, err = conn.Write(buffer[:n]); err != nil {
			return
		}
	}
}

func main() {
	listener, err := net.Listen("tcp4", "127.0.0.1:"+os.Args[1])
	if err != nil {
		log.Fatal(err)
	}
	for {
		conn, err := listener.Accept()
		if err != nil {
			continue
		}
		go echo(conn)
	}
}
