package main

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/textproto"
	"net/url"
	"strconv"
	"sync"
)

const bodySize = 1 << 20

type httpClient struct {
	client *http.Client
	base   string
}

// An answer that was read to its end.
type answer struct {
	*http.Response
	body      []byte
	continued bool
}

func callHTTP(to target) error {
	client, err := newHTTP(to)
	if err != nil {
		return err
	}
	client.get()
	client.echo("echo", nil)
	client.echo("expect", http.Header{"Expect": {"100-continue"}})
	client.plain("head", http.MethodHead, "/v1/orders/42")
	client.plain("none", http.MethodGet, "/v1/orders/none")
	client.plain("denied", http.MethodDelete, "/v1/orders/42")
	client.reuse()
	client.together()
	client.deniedUpload()
	client.client.CloseIdleConnections()
	return nil
}

func newHTTP(to target) (*httpClient, error) {
	base, err := url.Parse(to.url)
	if err != nil {
		return nil, err
	}
	transport := &http.Transport{ExpectContinueTimeout: patience, DisableCompression: true, MaxIdleConnsPerHost: 16}
	protocols := new(http.Protocols)
	protocols.SetHTTP1(to.protocol == "h1")
	protocols.SetHTTP2(to.protocol == "h2")
	protocols.SetUnencryptedHTTP2(to.protocol == "h2" && base.Scheme == "http")
	transport.Protocols = protocols
	if base.Scheme == "https" {
		if transport.TLSClientConfig, err = to.tls(); err != nil {
			return nil, err
		}
	}
	dialer := &net.Dialer{Timeout: patience}
	transport.DialContext = func(ctx context.Context, network, _ string) (net.Conn, error) {
		return dialer.DialContext(ctx, network, net.JoinHostPort(to.connect, base.Port()))
	}
	return &httpClient{client: &http.Client{Transport: transport, Timeout: patience}, base: to.url}, nil
}

func (c *httpClient) send(method, path string, body io.Reader, header http.Header) (*answer, error) {
	request, err := http.NewRequest(method, c.base+path, body)
	if err != nil {
		return nil, err
	}
	for name, values := range header {
		request.Header[name] = values
	}
	got := &answer{}
	trace := &httptrace.ClientTrace{Got100Continue: func() { got.continued = true }}
	response, err := c.client.Do(request.WithContext(httptrace.WithClientTrace(request.Context(), trace)))
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	got.Response = response
	got.body, err = io.ReadAll(response.Body)
	return got, err
}

func (got *answer) fields() map[string]any {
	return map[string]any{
		"status": got.StatusCode, "protocol": got.Proto, "length": len(got.body), "type": got.Header.Get("Content-Type"),
		"decision_id": got.Header.Get("X-Nova-Decision-Id"),
	}
}

func (c *httpClient) get() {
	got, err := c.send(http.MethodGet, "/v1/orders/42?color=blue&color=%20red", nil, nil)
	if err != nil {
		failed("get", err)
		return
	}
	fields := got.fields()
	fields["body"] = string(got.body)
	report("get", fields)
}

// A body whose length nobody is told: chunks in HTTP/1.
func (c *httpClient) echo(call string, header http.Header) {
	sent := pattern()
	body := io.MultiReader(bytes.NewReader(sent))
	all := http.Header{"Te": {"trailers"}}
	for name, values := range header {
		all[name] = values
	}
	got, err := c.send(http.MethodPost, "/v1/orders/echo", body, all)
	if err != nil {
		failed(call, err)
		return
	}
	fields := got.fields()
	fields["same"] = bytes.Equal(sent, got.body)
	fields["trailer"] = got.Trailer.Get(textproto.CanonicalMIMEHeaderKey("x-length"))
	fields["continued"] = got.continued
	report(call, fields)
}

func (c *httpClient) plain(call, method, path string) {
	got, err := c.send(method, path, nil, nil)
	if err != nil {
		failed(call, err)
		return
	}
	fields := got.fields()
	fields["content_length"] = got.Header.Get("Content-Length")
	if call == "denied" {
		fields["problem_status"] = problemStatus(got.body)
	}
	report(call, fields)
}

func problemStatus(body []byte) int {
	var problem struct{ Status int }
	if json.Unmarshal(body, &problem) != nil {
		return 0
	}
	return problem.Status
}

func (c *httpClient) reuse() {
	statuses := []int{}
	for i := range 20 {
		got, err := c.send(http.MethodGet, "/v1/orders/"+strconv.Itoa(i), nil, nil)
		if err != nil {
			failed("reuse", err)
			return
		}
		statuses = append(statuses, got.StatusCode)
	}
	report("reuse", map[string]any{"statuses": statuses})
}

// The app answers none of these before it has all of them.
func (c *httpClient) together() {
	var all sync.WaitGroup
	statuses := make([]int, 8)
	for i := range statuses {
		all.Go(func() {
			if got, err := c.send(http.MethodGet, "/v1/orders/together", nil, nil); err == nil {
				statuses[i] = got.StatusCode
			}
		})
	}
	all.Wait()
	report("together", map[string]any{"statuses": statuses})
}

func (c *httpClient) deniedUpload() {
	got, err := c.send(http.MethodPost, "/v2/upload", io.MultiReader(bytes.NewReader(pattern())), nil)
	if err != nil {
		failed("denied_upload", err)
		return
	}
	fields := got.fields()
	fields["problem_status"] = problemStatus(got.body)
	report("denied_upload", fields)
}

func pattern() []byte {
	body := make([]byte, bodySize)
	for i := range body {
		body[i] = byte(i % 251)
	}
	return body
}
