// The other side of the interoperability tests, on Go's crypto/tls.
//
//	tls_peer server CERT KEY ROOTS VERSION         echoes, says its port first; clients need a certificate of ROOTS ("" : none)
//	tls_peer client ADDRESS ROOTS VERSION BYTES [CERT KEY]   sends pseudo-random bytes and compares what comes back
package main

import (
	"bytes"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"math/rand"
	"os"
	"strconv"
)

func must(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func roots(path string) *x509.CertPool {
	pem, err := os.ReadFile(path)
	must(err)
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(pem)
	return pool
}

func version(text string) uint16 {
	if text == "1.2" {
		return tls.VersionTLS12
	}
	return tls.VersionTLS13
}

func serve() {
	pair, err := tls.LoadX509KeyPair(os.Args[2], os.Args[3])
	must(err)
	config := &tls.Config{Certificates: []tls.Certificate{pair}, MinVersion: version(os.Args[5]), MaxVersion: version(os.Args[5])}
	if os.Args[4] != "" {
		config.ClientAuth = tls.RequireAndVerifyClientCert
		config.ClientCAs = roots(os.Args[4])
	}
	listener, err := tls.Listen("tcp", "127.0.0.1:0", config)
	must(err)
	fmt.Println(listener.Addr().String())
	connection, err := listener.Accept()
	must(err)
	_, err = io.Copy(connection, connection)
	must(err)
	must(connection.Close())
}

func client() {
	size, err := strconv.ParseInt(os.Args[5], 10, 64)
	must(err)
	config := &tls.Config{RootCAs: roots(os.Args[3]), ServerName: "localhost", MinVersion: version(os.Args[4]), MaxVersion: version(os.Args[4])}
	if len(os.Args) > 7 {
		pair, err := tls.LoadX509KeyPair(os.Args[6], os.Args[7])
		must(err)
		config.Certificates = []tls.Certificate{pair}
	}
	connection, err := tls.Dial("tcp", os.Args[2], config)
	must(err)
	sent := sha256.New()
	go func() {
		source := io.TeeReader(io.LimitReader(rand.New(rand.NewSource(1)), size), sent)
		_, err := io.Copy(connection, source)
		must(err)
		must(connection.CloseWrite())
	}()
	received := sha256.New()
	count, err := io.Copy(received, connection)
	must(err)
	if count != size || !bytes.Equal(sent.Sum(nil), received.Sum(nil)) {
		must(fmt.Errorf("%d bytes came back, and not the same", count))
	}
	fmt.Println("the same")
}

func main() {
	if os.Args[1] == "server" {
		serve()
	} else {
		client()
	}
}
