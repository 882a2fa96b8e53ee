package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/url"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/interop"
	testgrpc "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/status"
)

// The cases of the gRPC project's own interoperability suite; one that does not hold ends the process with its reason.
var interopCases = []struct {
	name string
	run  func(context.Context, testgrpc.TestServiceClient, ...grpc.CallOption)
}{
	{"empty_unary", interop.DoEmptyUnaryCall},
	{"large_unary", interop.DoLargeUnaryCall},
	{"client_streaming", interop.DoClientStreaming},
	{"server_streaming", interop.DoServerStreaming},
	{"ping_pong", interop.DoPingPong},
	{"empty_stream", interop.DoEmptyStream},
	{"custom_metadata", interop.DoCustomMetadata},
	{"status_code_and_message", interop.DoStatusCodeAndMessage},
	{"special_status_message", interop.DoSpecialStatusMessage},
	{"timeout_on_sleeping_server", interop.DoTimeoutOnSleepingServer},
	{"cancel_after_begin", interop.DoCancelAfterBegin},
	{"cancel_after_first_response", interop.DoCancelAfterFirstResponse},
}

func callGRPC(to target) error {
	conn, err := dialGRPC(to)
	if err != nil {
		return err
	}
	defer conn.Close()
	client := testgrpc.NewTestServiceClient(conn)
	ctx, cancel := context.WithTimeout(context.Background(), 2*patience)
	defer cancel()
	denied(ctx, client)
	for _, it := range interopCases {
		it.run(ctx, client)
		report(it.name, map[string]any{"ok": true})
	}
	together(ctx, client)
	// The policy knows EmptyCall and the rest of the above, no more: this one has no rule.
	denied(ctx, client)
	interop.DoEmptyUnaryCall(ctx, client)
	report("after_denied", map[string]any{"ok": true})
	return nil
}

func dialGRPC(to target) (*grpc.ClientConn, error) {
	base, err := url.Parse(to.url)
	if err != nil {
		return nil, err
	}
	transport := insecure.NewCredentials()
	if base.Scheme == "https" {
		config, err := to.tls()
		if err != nil {
			return nil, err
		}
		transport = credentials.NewTLS(config)
	}
	security := grpc.WithTransportCredentials(transport)
	if to.connect == "" {
		return grpc.NewClient(base.Host, security)
	}
	dial := func(ctx context.Context, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "tcp", net.JoinHostPort(to.connect, base.Port()))
	}
	return grpc.NewClient("passthrough:///"+base.Host, security, grpc.WithContextDialer(dial))
}

// Reads a denial as any gRPC client would: a unary call and a stream to methods without a rule.
func denied(ctx context.Context, client testgrpc.TestServiceClient) {
	_, err := client.UnimplementedCall(ctx, &testgrpc.Empty{})
	of := status.Convert(err)
	report("denied_unary", map[string]any{"code": uint32(of.Code()), "message": of.Message()})
	stream, err := client.HalfDuplexCall(ctx)
	if err == nil {
		_ = stream.Send(&testgrpc.StreamingOutputCallRequest{})
		_, err = stream.Recv()
	}
	of = status.Convert(err)
	report("denied_stream", map[string]any{"code": uint32(of.Code()), "message": of.Message()})
}

// Many bidirectional streams at once on the one connection, each with its own answers in its own order.
func together(ctx context.Context, client testgrpc.TestServiceClient) {
	var all sync.WaitGroup
	errs := make([]error, 8)
	opened := make(chan struct{})
	var ready sync.WaitGroup
	ready.Add(len(errs))
	for i := range errs {
		all.Go(func() { errs[i] = bidirectional(ctx, client, i+1, ready.Done, opened) })
	}
	ready.Wait()
	close(opened)
	all.Wait()
	fields := map[string]any{"streams": len(errs)}
	for _, err := range errs {
		if err != nil {
			fields["error"] = err.Error()
		}
	}
	report("together", fields)
}

// Asks for answers of a size of its own, before and after all other streams are open.
func bidirectional(ctx context.Context, client testgrpc.TestServiceClient, size int, ready func(), opened <-chan struct{}) error {
	once := sync.OnceFunc(ready)
	defer once()
	stream, err := client.FullDuplexCall(ctx)
	if err != nil {
		return err
	}
	for round := range 3 {
		parameters := []*testgrpc.ResponseParameters{{Size: int32(size)}}
		if err := stream.Send(&testgrpc.StreamingOutputCallRequest{ResponseParameters: parameters}); err != nil {
			return err
		}
		answer, err := stream.Recv()
		if err != nil {
			return err
		}
		if got := len(answer.GetPayload().GetBody()); got != size {
			return fmt.Errorf("%d bytes instead of %d", got, size)
		}
		if round == 0 {
			once()
			<-opened
		}
	}
	if err := stream.CloseSend(); err != nil {
		return err
	}
	if _, err := stream.Recv(); err != io.EOF {
		return fmt.Errorf("instead of the end: %w", err)
	}
	return nil
}
