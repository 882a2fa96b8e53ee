package main

import (
	"io"
	"net/http"
	"net/url"
)

// net/http through a proxy, as HTTP_PROXY and HTTPS_PROXY set it up.
func callThroughProxy(to target) error {
	config, err := to.tls()
	if err != nil {
		return err
	}
	proxy := &url.URL{Scheme: "http", Host: to.proxy}
	client := http.Client{
		Timeout:   3 * patience,
		Transport: &http.Transport{Proxy: http.ProxyURL(proxy), TLSClientConfig: config, ForceAttemptHTTP2: true},
	}
	for _, step := range []struct{ call, url string }{
		{"get", to.url + "/files/hello"},
		{"secure", to.secure + "/files/hello"},
		{"denied", to.url + "/secret"},
		{"again", to.url + "/files/hello"},
	} {
		answer, err := client.Get(step.url)
		if err != nil {
			failed(step.call, err)
			continue
		}
		_, _ = io.Copy(io.Discard, answer.Body)
		_ = answer.Body.Close()
		report(step.call, map[string]any{"status": answer.StatusCode})
	}
	return nil
}
