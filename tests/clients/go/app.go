package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/interop"
	testgrpc "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/reflection"
	"google.golang.org/grpc/status"
)

// What the app saw, one line of JSON per call that has ended.
type recorder struct {
	lock sync.Mutex
	file *os.File
}

// The app of a guest, or a host outside: the gRPC project's own test server, with reflection. It prints its port and serves until it is ended.
func serveGRPC(address, records string) error {
	file, err := os.OpenFile(records, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	listener, err := net.Listen("tcp4", address)
	if err != nil {
		return err
	}
	recorder := &recorder{file: file}
	server := grpc.NewServer(grpc.UnaryInterceptor(recorder.unary), grpc.StreamInterceptor(recorder.stream))
	testgrpc.RegisterTestServiceServer(server, interop.NewTestServer())
	reflection.Register(server)
	fmt.Println(listener.Addr().(*net.TCPAddr).Port)
	return server.Serve(listener)
}

func (r *recorder) unary(ctx context.Context, request any, info *grpc.UnaryServerInfo, handle grpc.UnaryHandler) (any, error) {
	answer, err := handle(ctx, request)
	return answer, r.ended(ctx, info.FullMethod, err)
}

func (r *recorder) stream(server any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handle grpc.StreamHandler) error {
	return r.ended(stream.Context(), info.FullMethod, handle(server, stream))
}

func (r *recorder) ended(ctx context.Context, method string, err error) error {
	fields, _ := metadata.FromIncomingContext(ctx)
	_, hasDeadline := ctx.Deadline()
	line, _ := json.Marshal(map[string]any{
		"method": method, "authority": fields.Get(":authority"), "xfcc": fields.Get("x-forwarded-client-cert"),
		"deadline": hasDeadline, "code": status.Code(err), "cancelled": ctx.Err() == context.Canceled,
	})
	r.lock.Lock()
	defer r.lock.Unlock()
	_, _ = r.file.Write(append(line, '\n'))
	return err
}
