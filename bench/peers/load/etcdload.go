// etcdload does to etcd what bench/workloads.py and bench/failover.py do to metaray.
//
//	etcdload HOST:PORT,HOST:PORT,... WORKLOAD...
//
// Workloads run in the order given; each prints one line of JSON when it is over:
//
//	put:CALLERS:SECONDS             write single keys
//	commit:CALLERS:SECONDS:BATCH    set consumer offsets, so many in one transaction
//	read:CALLERS:SECONDS            read single keys, linearizable
//	local-read:CALLERS:SECONDS      read single keys from whichever member is asked (serializable)
//	failover:CALLERS:SECONDS:PID    kill -9 this process, the leader, while callers write
//
// A caller has one call under way and makes the next when it has ended. What ends within so many
// seconds is counted, after one second that is not.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"sort"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"go.etcd.io/etcd/clientv3"
	"go.uber.org/zap"
	"google.golang.org/grpc"
)

const (
	warm        = time.Second
	keys        = 10_000 // that the writers of one workload write to
	readKeys    = 100
	valueBytes  = 120
	partitions  = 16 // of a topic
	clientsMax  = 10 // callers share clients, as the tasks of a broker would
	callTimeout = 5 * time.Second
	dialTimeout = 10 * time.Second
	errorPause  = 10 * time.Millisecond

	// A member that has lost its leader keeps a write for seconds; who gives up earlier and asks
	// again is served earlier.
	failoverTimeout = 250 * time.Millisecond
	failoverClients = 4  // each finds its way by itself; with more, the last of them is later
	failoverKeys    = 50 // of each writer
	underLoad       = 500 * time.Millisecond
)

var value = strings.Repeat("v", valueBytes)

type workload struct {
	kind    string
	callers int
	seconds time.Duration
	of      int // commit: operations in a batch; failover: the process to kill
}

func parse(word string) (workload, error) {
	parts := strings.Split(word, ":")
	fields := map[string]int{"put": 3, "commit": 4, "read": 3, "local-read": 3, "failover": 4}[parts[0]]
	if fields == 0 || len(parts) != fields {
		return workload{}, fmt.Errorf("no workload: %q", word)
	}
	callers, err := strconv.Atoi(parts[1])
	if err != nil || callers < 1 {
		return workload{}, fmt.Errorf("callers: %q", word)
	}
	seconds, err := strconv.ParseFloat(parts[2], 64)
	if err != nil || seconds <= 0 {
		return workload{}, fmt.Errorf("seconds: %q", word)
	}
	of := 1
	if fields == 4 {
		if of, err = strconv.Atoi(parts[3]); err != nil || of < 1 {
			return workload{}, fmt.Errorf("last field: %q", word)
		}
	}
	return workload{parts[0], callers, time.Duration(seconds * float64(time.Second)), of}, nil
}

func connect(endpoints []string, count int) ([]*clientv3.Client, error) {
	silent := zap.NewProductionConfig()
	silent.Level = zap.NewAtomicLevelAt(zap.FatalLevel)
	var clients []*clientv3.Client
	for len(clients) < count {
		client, err := clientv3.New(clientv3.Config{
			Endpoints:          endpoints,
			DialTimeout:        dialTimeout,
			DialOptions:        []grpc.DialOption{grpc.WithBlock()},
			MaxCallSendMsgSize: 16 << 20,
			LogConfig:          &silent,
		})
		if err != nil {
			disconnect(clients)
			return nil, fmt.Errorf("connect: %w", err)
		}
		clients = append(clients, client)
	}
	return clients, nil
}

func disconnect(clients []*clientv3.Client) {
	for _, client := range clients {
		if err := client.Close(); err != nil {
			fmt.Fprintln(os.Stderr, "close:", err)
		}
	}
}

// A call is the turn-th of a caller.
type call func(ctx context.Context, client *clientv3.Client, caller, turn int) error

func callOf(w workload) call {
	switch w.kind {
	case "put":
		return func(ctx context.Context, client *clientv3.Client, caller, turn int) error {
			_, err := client.Put(ctx, "bench/"+strconv.Itoa((caller*7919+turn)%keys), value)
			return err
		}
	case "commit":
		names := make([][]string, w.callers)
		for caller := range names {
			for each := 0; each < w.of; each++ {
				names[caller] = append(names[caller],
					fmt.Sprintf("offset/group-%d/topic-%d/%d", caller, each/partitions, each%partitions))
			}
		}
		return func(ctx context.Context, client *clientv3.Client, caller, turn int) error {
			operations := make([]clientv3.Op, w.of)
			offset := strconv.Itoa(turn)
			for each, name := range names[caller] {
				operations[each] = clientv3.OpPut(name, offset)
			}
			_, err := client.Txn(ctx).Then(operations...).Commit()
			return err
		}
	}
	var options []clientv3.OpOption
	if w.kind == "local-read" {
		options = append(options, clientv3.WithSerializable())
	}
	return func(ctx context.Context, client *clientv3.Client, caller, turn int) error {
		key := "bench/" + strconv.Itoa((caller+turn)%readKeys)
		found, err := client.Get(ctx, key, options...)
		if err == nil && found.Count != 1 {
			err = fmt.Errorf("%s is not there", key)
		}
		return err
	}
}

type sample struct {
	OpsPerS float64 `json:"ops_per_s"`
	P50     float64 `json:"p50_ms"`
	P99     float64 `json:"p99_ms"`
	Calls   int     `json:"calls"`
	Errors  int     `json:"errors"`
}

func drive(clients []*clientv3.Client, w workload) (sample, error) {
	if w.kind == "read" || w.kind == "local-read" {
		for each := 0; each < readKeys; each++ {
			ctx, cancel := context.WithTimeout(context.Background(), callTimeout)
			_, err := clients[0].Put(ctx, "bench/"+strconv.Itoa(each), value)
			cancel()
			if err != nil {
				return sample{}, fmt.Errorf("what shall be read is not written: %w", err)
			}
		}
	}
	run := callOf(w)
	took := make([][]time.Duration, w.callers)
	errors := make([]int, w.callers)
	from := time.Now().Add(warm)
	until := from.Add(w.seconds)
	var all sync.WaitGroup
	for caller := 0; caller < w.callers; caller++ {
		all.Add(1)
		go func(caller int) {
			defer all.Done()
			client := clients[caller%len(clients)]
			for turn := 0; ; turn++ {
				begun := time.Now()
				if !begun.Before(until) {
					return
				}
				ctx, cancel := context.WithTimeout(context.Background(), callTimeout)
				err := run(ctx, client, caller, turn)
				cancel()
				now := time.Now()
				if err != nil {
					if errors[caller] == 0 {
						fmt.Fprintln(os.Stderr, w.kind, err)
					}
					errors[caller]++
					time.Sleep(errorPause)
				} else if !now.Before(from) && !now.After(until) {
					took[caller] = append(took[caller], now.Sub(begun))
				}
			}
		}(caller)
	}
	all.Wait()
	var together []time.Duration
	found := sample{}
	for caller := range took {
		together = append(together, took[caller]...)
		found.Errors += errors[caller]
	}
	found.Calls = len(together)
	if found.Calls > 0 {
		sort.Slice(together, func(i, j int) bool { return together[i] < together[j] })
		found.OpsPerS = float64(found.Calls*w.of) / w.seconds.Seconds()
		found.P50 = ms(together[found.Calls/2])
		found.P99 = ms(together[found.Calls*99/100])
	}
	return found, nil
}

func ms(took time.Duration) float64 { return took.Seconds() * 1_000 }

type outcome struct {
	First float64 `json:"first_ms"`
	All   float64 `json:"all_ms"`
}

type ack struct {
	caller       int
	begun, ended time.Time
}

// failover kills the leader once every caller has written and half a second more. First: from then
// to the acknowledgement of the first write that began after it. All: until every caller has had
// such a write acknowledged.
func failover(clients []*clientv3.Client, w workload) (outcome, error) {
	ctx, cancel := context.WithTimeout(context.Background(), w.seconds)
	acks := make(chan ack, 1024)
	var all sync.WaitGroup
	defer all.Wait()
	defer cancel()
	for caller := 0; caller < w.callers; caller++ {
		all.Add(1)
		go func(caller int) {
			defer all.Done()
			client := clients[caller%len(clients)]
			for turn := 0; ctx.Err() == nil; turn++ {
				begun := time.Now()
				key := fmt.Sprintf("failover/%d/%d", caller, turn%failoverKeys)
				limited, done := context.WithTimeout(ctx, failoverTimeout)
				_, err := client.Put(limited, key, value)
				done()
				if err != nil {
					time.Sleep(errorPause)
					continue
				}
				select {
				case acks <- ack{caller, begun, time.Now()}:
				case <-ctx.Done():
				}
			}
		}(caller)
	}
	written := map[int]bool{}
	var due <-chan time.Time // set once all have written
	var killed time.Time
	served := map[int]time.Duration{} // since the kill
	for len(served) < w.callers {
		select {
		case <-ctx.Done():
			return outcome{}, fmt.Errorf("%d of %d callers were served", len(served), w.callers)
		case <-due:
			if err := syscall.Kill(w.of, syscall.SIGKILL); err != nil {
				return outcome{}, fmt.Errorf("kill %d: %w", w.of, err)
			}
			killed = time.Now()
		case one := <-acks:
			written[one.caller] = true
			if due == nil && len(written) == w.callers {
				due = time.After(underLoad)
			}
			if killed.IsZero() || one.begun.Before(killed) {
				continue
			}
			if _, known := served[one.caller]; !known {
				served[one.caller] = one.ended.Sub(killed)
			}
		}
	}
	first, last := w.seconds, time.Duration(0)
	for _, took := range served {
		if took < first {
			first = took
		}
		if took > last {
			last = took
		}
	}
	return outcome{ms(first), ms(last)}, nil
}

func run(endpoints []string, w workload) (interface{}, error) {
	count := clientsMax
	if w.kind == "failover" {
		count = failoverClients
	}
	if w.callers < count {
		count = w.callers
	}
	clients, err := connect(endpoints, count)
	if err != nil {
		return nil, err
	}
	defer disconnect(clients)
	if w.kind == "failover" {
		return failover(clients, w)
	}
	return drive(clients, w)
}

func main() {
	if len(os.Args) < 3 {
		fail(fmt.Errorf("etcdload HOST:PORT,... WORKLOAD..."))
	}
	var workloads []workload
	for _, word := range os.Args[2:] {
		w, err := parse(word)
		if err != nil {
			fail(err)
		}
		workloads = append(workloads, w)
	}
	for _, w := range workloads {
		found, err := run(strings.Split(os.Args[1], ","), w)
		if err != nil {
			fail(err)
		}
		if err := json.NewEncoder(os.Stdout).Encode(found); err != nil {
			fail(err)
		}
	}
}

func fail(err error) {
	fmt.Fprintln(os.Stderr, "etcdload:", err)
	os.Exit(1)
}
