// A client in another language than Python: reads keys of a state from a proxy, or from a state server, in three ways,
// scans all of it, or watches it, and prints one JSON object per answer, entry or change. Written from docs/clients-reference.md alone; the end-to-end tests run it in a pod.
//
//	go-client -proxy proxy:7400 -state app/sensors sensor-1 sensor-2
//	go-client -proxy proxy:7400 -state app/sensors -method lookup-bytes -every 100ms -for 30s sensor-1
//	go-client -proxy proxy:7400 -state app/sensors -method scan -where 'max>30' -prefix sensor- -limit 10
//	go-client -proxy proxy:7400 -state app/sensors -method watch -changes 5 -for 30s
//
// A key of several columns is written with a comma between them, the map key's columns last.
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"strings"
	"time"
)

func main() {
	var (
		proxy   = flag.String("proxy", "localhost:7400", "host:port of a client proxy, or of a state server")
		of      = flag.String("state", "", "APPLICATION/STATE")
		method  = flag.String("method", "get", "get, lookup (typed keys on the stream), lookup-bytes (storage keys on the stream), scan or watch")
		timeout = flag.Duration("timeout", 5*time.Second, "of each request")
		every   = flag.Duration("every", 0, "ask again after so long; errors are then printed as answers")
		during  = flag.Duration("for", time.Minute, "with -every, and of a watch: until so much time has passed")
		where   = flag.String("where", "", "of a scan or a watch: FIELD>VALUE, or with >= < <= =")
		prefix  = flag.String("prefix", "", "of a scan or a watch: how the first column of the key begins")
		limit   = flag.Uint64("limit", 0, "of a scan: the most entries")
		token   = flag.String("token", "", "of a watch: go on behind what an earlier one has told")
		changes = flag.Int("changes", 0, "of a watch: end behind so many rows and changes, where they are whole")
	)
	flag.Parse()
	application, state, named := strings.Cut(*of, "/")
	streams := *method == "scan" || *method == "watch"
	if !named || (flag.NArg() == 0 && !streams) || (flag.NArg() > 0 && *method == "scan") {
		fmt.Fprintln(os.Stderr, "usage: go-client -proxy HOST:PORT -state APPLICATION/STATE [-method get|lookup|lookup-bytes] KEY...\n"+
			"       go-client -proxy HOST:PORT -state APPLICATION/STATE -method scan\n"+
			"       go-client -proxy HOST:PORT -state APPLICATION/STATE -method watch [KEY...]")
		os.Exit(2)
	}
	client, err := connect(*proxy, application, state, *timeout)
	if err != nil {
		fail(err)
	}
	defer client.close()
	output := json.NewEncoder(os.Stdout)
	if streams {
		of := wanted{where: *where, prefix: *prefix, limit: *limit}
		if *method == "scan" {
			err = client.scan(context.Background(), of, output.Encode)
		} else {
			ctx, cancel := context.WithTimeout(context.Background(), *during)
			defer cancel()
			err = client.watch(ctx, of, flag.Args(), *token, *changes, output.Encode)
		}
		if err != nil {
			fail(err)
		}
		return
	}
	until := time.Now().Add(*during)
	for {
		begun := time.Now()
		answers, err := client.read(context.Background(), *method, flag.Args())
		if err != nil && *every == 0 {
			fail(err)
		}
		if err != nil {
			answers = []answer{failure(err)}
		}
		for _, one := range answers {
			one.At, one.Seconds = begun.UTC(), time.Since(begun).Seconds()
			if err := output.Encode(one); err != nil {
				fail(err)
			}
		}
		if *every == 0 || time.Now().Add(*every).After(until) {
			return
		}
		time.Sleep(*every)
	}
}

func fail(err error) {
	told := failure(err)
	fmt.Fprintf(os.Stderr, "%s: %s\n", told.Reason, told.Error)
	os.Exit(1)
}
