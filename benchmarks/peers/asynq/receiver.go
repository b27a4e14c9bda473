package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"sync"
	"time"
)

// Stand in a body once for each event.
var (
	event     = []byte(`"event_id":`)
	timestamp = []byte(`"timestamp":"`)
)

// What came since `/begin`. `Events` are those of different requests; First and Last are seconds since the epoch.
type tally struct {
	Requests int     `json:"requests"`
	Events   int     `json:"events"`
	First    float64 `json:"first"`
	Last     float64 `json:"last"`
	// From the timestamp in the body to the arrival, ms.
	P50 float64 `json:"p50"`
	P99 float64 `json:"p99"`
}

type receiver struct {
	mutex sync.Mutex
	ids   map[string]struct{}
	tally tally
	// While it is not nil no request is answered, until it is closed.
	held chan struct{}
	// How many requests are held.
	holds int
	// Of each first event of a request, ms.
	waits []float64
}

// Listens on a free port of loopback: POST /hook, GET /tally, POST /begin, POST /hold, POST /release.
func receive() {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	check(err)
	receiver := &receiver{ids: map[string]struct{}{}}
	mux := http.NewServeMux()
	mux.HandleFunc("POST /hook", receiver.hook)
	mux.HandleFunc("GET /tally", func(answer http.ResponseWriter, _ *http.Request) {
		receiver.mutex.Lock()
		defer receiver.mutex.Unlock()
		if waits := slices.Sorted(slices.Values(receiver.waits)); len(waits) > 0 {
			receiver.tally.P50, receiver.tally.P99 = waits[len(waits)/2], waits[len(waits)*99/100]
		}
		check(json.NewEncoder(answer).Encode(struct {
			tally
			Held int `json:"held"`
		}{receiver.tally, receiver.holds}))
	})
	mux.HandleFunc("POST /begin", func(http.ResponseWriter, *http.Request) {
		receiver.mutex.Lock()
		defer receiver.mutex.Unlock()
		receiver.ids, receiver.tally, receiver.waits = map[string]struct{}{}, tally{}, nil
	})
	mux.HandleFunc("POST /hold", func(http.ResponseWriter, *http.Request) {
		receiver.mutex.Lock()
		defer receiver.mutex.Unlock()
		receiver.held = make(chan struct{})
	})
	mux.HandleFunc("POST /release", func(http.ResponseWriter, *http.Request) {
		receiver.mutex.Lock()
		defer receiver.mutex.Unlock()
		close(receiver.held)
		receiver.held = nil
	})
	fmt.Printf("ready http://%s\n", listener.Addr())
	check(http.Serve(listener, mux))
}

func (receiver *receiver) hook(answer http.ResponseWriter, request *http.Request) {
	body, err := io.ReadAll(request.Body)
	if err != nil {
		return
	}
	receiver.mutex.Lock()
	held := receiver.held
	if held != nil {
		receiver.holds++
	}
	receiver.mutex.Unlock()
	if held != nil {
		dead := false
		select {
		case <-held:
		case <-request.Context().Done():
			dead = true
		}
		receiver.mutex.Lock()
		receiver.holds--
		receiver.mutex.Unlock()
		if dead { // nothing was accepted
			return
		}
	}
	now := float64(time.Now().UnixMicro()) / 1e6
	wait := now - written(body)
	receiver.mutex.Lock()
	if receiver.tally.First == 0 {
		receiver.tally.First = now
	}
	receiver.tally.Last = now
	receiver.tally.Requests++
	if id := request.Header.Get("webhook-id"); !receiver.has(id) {
		receiver.ids[id] = struct{}{}
		receiver.waits = append(receiver.waits, 1000*wait)
		receiver.tally.Events += max(1, bytes.Count(body, event))
	}
	receiver.mutex.Unlock()
	answer.WriteHeader(http.StatusNoContent)
}

// The timestamp of the first event, seconds since the epoch; 0 if there is none.
func written(body []byte) float64 {
	_, rest, _ := bytes.Cut(body, timestamp)
	text, _, _ := bytes.Cut(rest, []byte(`"`))
	moment, err := time.Parse(time.RFC3339Nano, string(text))
	if err != nil {
		return 0
	}
	return float64(moment.UnixMicro()) / 1e6
}

func (receiver *receiver) has(id string) bool {
	_, there := receiver.ids[id]
	return there
}
