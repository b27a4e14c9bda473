// A receiver with the standard library of Go 1.21 or newer.
package main

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"io"
	"log"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"
)

type event struct {
	EventType string `json:"event_type"`
	Data      struct {
		ReservationID string `json:"reservation_id"` // of a reservation
		ID            string `json:"id"`             // of a configured kind
	} `json:"data"`
}

var seen sync.Map // use a database with a unique key in production

func verified(key []byte, header http.Header, body []byte) bool {
	id, timestamp := header.Get("webhook-id"), header.Get("webhook-timestamp")
	seconds, err := strconv.ParseInt(timestamp, 10, 64)
	if err != nil || time.Since(time.Unix(seconds, 0)).Abs() > 5*time.Minute {
		return false
	}
	mac := hmac.New(sha256.New, key)
	mac.Write([]byte(id + "." + timestamp + "."))
	mac.Write(body)
	expected := mac.Sum(nil)
	for _, signature := range strings.Fields(header.Get("webhook-signature")) {
		text, found := strings.CutPrefix(signature, "v1,")
		given, err := base64.StdEncoding.DecodeString(text)
		if found && err == nil && hmac.Equal(given, expected) {
			return true
		}
	}
	return false
}

func main() {
	key, err := base64.StdEncoding.DecodeString(strings.TrimPrefix(os.Getenv("WEBHOOK_SECRET"), "whsec_"))
	if err != nil {
		log.Fatal(err)
	}
	http.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, 1<<20))
		if err != nil || !verified(key, r.Header, body) {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		if _, duplicate := seen.LoadOrStore(r.Header.Get("webhook-id"), true); !duplicate {
			var e event
			if err := json.Unmarshal(body, &e); err == nil && strings.HasSuffix(e.EventType, ".expired") {
				log.Print(e.EventType, " ", e.Data.ReservationID+e.Data.ID)
			}
		}
		w.WriteHeader(http.StatusNoContent)
	})
	port := os.Getenv("PORT")
	if port == "" {
		port = "8080"
	}
	log.Fatal(http.ListenAndServe("127.0.0.1:"+port, nil))
}
