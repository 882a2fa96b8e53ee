package main

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
)

// A server as anybody would write it. It answers with what it saw, and says in a trailer how much came.
func serveHTTPS(address, cert, key string) error {
	listener, err := net.Listen("tcp", address)
	if err != nil {
		return err
	}
	fmt.Println("listening")
	return http.ServeTLS(listener, http.HandlerFunc(tell), cert, key)
}

func tell(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Trailer", "X-Sum")
	// Its caller went away: nobody is left to be told.
	_ = json.NewEncoder(w).Encode(map[string]any{
		"protocol": r.Proto, "from": r.RemoteAddr, "host": r.Host, "target": r.RequestURI,
		"length": len(body), "end": r.Trailer.Get("X-End"), "forwarded": r.Header.Get("X-Forwarded-For"),
	})
	// Else its length would be announced, and HTTP/1 has no trailers then.
	_ = http.NewResponseController(w).Flush()
	w.Header().Set("X-Sum", strconv.Itoa(len(body)))
}
