// Clients that people really use, and the app that gRPC's own clients talk to. Each call prints one line of JSON; whoever
// starts this judges. An argument list is always: command, then flags.
package main

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"time"
)

// No call takes as long, except on a machine that is stuck.
const patience = 20 * time.Second

// Where a client goes and as whom.
type target struct {
	url, connect, ca, cert, key, protocol, secure, proxy string
}

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) == 0 {
		return errors.New("commands: http, proxy, grpc, grpc-app, https-app")
	}
	flags := flag.NewFlagSet(args[0], flag.ExitOnError)
	var to target
	flags.StringVar(&to.url, "url", "", "scheme, name and port")
	flags.StringVar(&to.connect, "connect", "", "address of the name; without it, through the proxy of the environment")
	flags.StringVar(&to.ca, "ca", "", "PEM file of the roots")
	flags.StringVar(&to.cert, "cert", "", "PEM file of the client's chain")
	flags.StringVar(&to.key, "key", "", "PEM file of its key")
	flags.StringVar(&to.protocol, "protocol", "h1", "h1 or h2")
	flags.StringVar(&to.secure, "secure", "", "scheme, name and port of a host with TLS, behind a proxy")
	flags.StringVar(&to.proxy, "proxy", "", "address of a proxy")
	records := flags.String("records", "", "file of what the app saw")
	address := flags.String("address", "", "where the app listens")
	if err := flags.Parse(args[1:]); err != nil {
		return err
	}
	switch args[0] {
	case "http":
		return callHTTP(to)
	case "proxy":
		return callThroughProxy(to)
	case "grpc":
		return callGRPC(to)
	case "grpc-app":
		return serveGRPC(*address, *records)
	case "https-app":
		return serveHTTPS(*address, to.cert, to.key)
	default:
		return fmt.Errorf("unknown command %q", args[0])
	}
}

// The TLS settings that anybody would write: nothing is switched off.
func (to target) tls() (*tls.Config, error) {
	pem, err := os.ReadFile(to.ca)
	if err != nil {
		return nil, err
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("%s holds no certificate", to.ca)
	}
	config := &tls.Config{RootCAs: roots}
	if to.cert != "" {
		pair, err := tls.LoadX509KeyPair(to.cert, to.key)
		if err != nil {
			return nil, err
		}
		config.Certificates = []tls.Certificate{pair}
	}
	return config, nil
}

// One line of JSON on standard output.
func report(call string, fields map[string]any) {
	fields["call"] = call
	line, err := json.Marshal(fields)
	if err != nil {
		panic(err)
	}
	fmt.Println(string(line))
}

func failed(call string, err error) {
	report(call, map[string]any{"error": err.Error()})
}
