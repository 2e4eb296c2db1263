package webhook

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"runtime"
	"testing"
)

// BenchmarkPost posts to receivers of this process over loopback, without TLS; half of the work is theirs.
func BenchmarkPost(b *testing.B) {
	for _, hosts := range []int{1, 8} {
		for _, concurrency := range []int{1, 16} {
			b.Run(fmt.Sprintf("hosts=%d/concurrency=%d", hosts, concurrency), func(b *testing.B) {
				var urls []string
				for range hosts {
					server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { _, _ = io.Copy(io.Discard, r.Body) }))
					b.Cleanup(server.Close)
					urls = append(urls, server.URL)
				}
				r := newRig(b, func(c *Config) { c.Concurrency = concurrency })
				b.ReportAllocs()
				b.ResetTimer()
				for i := range b.N {
					r.fire(r.delivery(fmt.Sprint(i), urls[i%hosts]))
				}
				for r.count() < b.N {
					runtime.Gosched()
				}
			})
		}
	}
}
