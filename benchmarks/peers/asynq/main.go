// Command asynq is what the benchmark `queues` measures asynq with, and the receiver of all its webhooks.
//
//	asynq fill REDIS COUNT AT SPREAD          tasks with deadlines from AT (ms), over SPREAD ms
//	asynq work REDIS SCRIPT THREADS EVERY [URL]  run them; EVERY: between two looks, `0s` is asynq's default
//	asynq receive                             answer webhooks at once
//
// `work` and `receive` say `ready` when they are, and run until they are killed.
package main

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"
)

const (
	kind   = "expire"
	amount = 500
	// Key of the signature; each worker signs as sweeperd does.
	secret = "0123456789abcdef0123456789abcdef"
	// How many tasks are enqueued at the same time.
	enqueuers = 16
)

type hold struct {
	ID        string `json:"id"`
	ExpiresAt int64  `json:"expires_at"`
}

func main() {
	log.SetFlags(0)
	arguments := append(os.Args[2:], "")
	switch os.Args[1] {
	case "fill":
		fill(arguments[0], number(arguments[1]), number(arguments[2]), number(arguments[3]))
	case "work":
		work(arguments[0], arguments[1], int(number(arguments[2])), arguments[3], arguments[4])
	case "receive":
		receive()
	}
}

func number(text string) int64 {
	value, err := strconv.ParseInt(text, 10, 64)
	check(err)
	return value
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}

func fill(address string, count, at, spread int64) {
	option, err := asynq.ParseRedisURI(address)
	check(err)
	client := asynq.NewClient(option)
	defer client.Close()
	numbers := make(chan int64)
	var group sync.WaitGroup
	for range enqueuers {
		group.Go(func() {
			for each := range numbers {
				due := at + each*spread/count
				id := fmt.Sprintf("%036d", each)
				payload, err := json.Marshal(hold{id, due})
				check(err)
				_, err = client.Enqueue(asynq.NewTask(kind, payload), asynq.TaskID(id), asynq.ProcessAt(time.UnixMilli(due)))
				check(err)
			}
		})
	}
	for each := range count {
		numbers <- each
	}
	close(numbers)
	group.Wait()
}

func work(address, path string, threads int, every, url string) {
	source, err := os.ReadFile(path)
	check(err)
	interval, err := time.ParseDuration(every)
	check(err)
	option, err := asynq.ParseRedisURI(address)
	check(err)
	settings, err := redis.ParseURL(address)
	check(err)
	settings.PoolSize = threads
	worker := &worker{redis.NewClient(settings), redis.NewScript(string(source)), client(threads), url}
	server := asynq.NewServer(option, asynq.Config{
		Concurrency:              threads,
		DelayedTaskCheckInterval: interval,
		LogLevel:                 asynq.ErrorLevel,
		// A task whose worker has died comes back soon.
		RetryDelayFunc: func(int, error, *asynq.Task) time.Duration { return time.Second },
	})
	check(server.Start(asynq.HandlerFunc(worker.handle)))
	fmt.Println("ready")
	select {}
}

func client(connections int) *http.Client {
	return &http.Client{
		Timeout:   30 * time.Second,
		Transport: &http.Transport{MaxIdleConnsPerHost: connections, DisableCompression: true},
	}
}

type worker struct {
	redis  *redis.Client
	script *redis.Script
	client *http.Client
	url    string
}

func (worker *worker) handle(ctx context.Context, task *asynq.Task) error {
	var due hold
	if err := json.Unmarshal(task.Payload(), &due); err != nil {
		return err
	}
	tenant := "budget:tenant:acme"
	keys := []string{
		"bench:released:" + due.ID, "bench:events",
		tenant + ":TOKENS",
		tenant + "/workspace:prod:TOKENS",
		tenant + "/workspace:prod/app:chat:TOKENS",
		tenant + "/workspace:prod/app:chat/agent:support:TOKENS",
	}
	released, err := worker.script.Run(ctx, worker.redis, keys, due.ID, due.ExpiresAt, amount).Int()
	if err != nil || released == 0 || worker.url == "" {
		return err
	}
	return worker.tell(ctx, due)
}

func (worker *worker) tell(ctx context.Context, due hold) error {
	body, err := json.Marshal(map[string]any{
		"event_id":   due.ID,
		"event_type": "reservation.expired",
		"category":   "reservation",
		"timestamp":  time.Now().UTC().Format(time.RFC3339Nano),
		"tenant_id":  "acme",
		"scope":      "tenant:acme/workspace:prod/app:chat/agent:support",
		"actor":      map[string]string{"type": "system"},
		"source":     "worker",
		"data": map[string]any{
			"reservation_id": due.ID, "unit": "TOKENS", "estimated_amount": amount,
			"expires_at": time.UnixMilli(due.ExpiresAt).UTC().Format(time.RFC3339Nano),
		},
	})
	if err != nil {
		return err
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, worker.url, bytes.NewReader(body))
	if err != nil {
		return err
	}
	timestamp := strconv.FormatInt(time.Now().Unix(), 10)
	signer := hmac.New(sha256.New, []byte(secret))
	signer.Write([]byte(due.ID + "." + timestamp + "."))
	signer.Write(body)
	request.Header.Set("Content-Type", "application/json")
	request.Header.Set("webhook-id", due.ID)
	request.Header.Set("webhook-timestamp", timestamp)
	request.Header.Set("webhook-signature", "v1,"+base64.StdEncoding.EncodeToString(signer.Sum(nil)))
	response, err := worker.client.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	_, err = io.Copy(io.Discard, response.Body)
	if response.StatusCode/100 != 2 {
		return fmt.Errorf("the receiver answers %s", strings.TrimSpace(response.Status))
	}
	return err
}
