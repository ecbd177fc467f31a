// Sends the numbers from 0 on to partition 0 of a topic until its input ends; says of each what became of it.
// Arguments: servers, topic, and if wanted how old metadata must be before it is asked for again (MetadataMinAge).
package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

func main() {
	options := []kgo.Opt{
		kgo.SeedBrokers(strings.Split(os.Args[1], ",")...),
		kgo.DefaultProduceTopic(os.Args[2]),
		kgo.RecordPartitioner(kgo.ManualPartitioner()),
		kgo.ProducerLinger(5*time.Millisecond),
		kgo.ProducerBatchCompression(kgo.NoCompression()), // whoever reads may have no codec
	}
	if len(os.Args) > 3 {
		age, err := time.ParseDuration(os.Args[3])
		if err != nil {
			panic(err)
		}
		options = append(options, kgo.MetadataMinAge(age))
	}
	client, err := kgo.NewClient(options...)
	if err != nil {
		panic(err)
	}
	ended := make(chan struct{})
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		close(ended)
	}()
	sent := 0
	for ticks := time.NewTicker(time.Millisecond); ; sent++ {
		select {
		case <-ended:
			if err := client.Flush(context.Background()); err != nil {
				panic(err)
			}
			fmt.Printf("sent %d\n", sent)
			return
		case <-ticks.C:
		}
		number := sent
		record := &kgo.Record{Value: []byte(strconv.Itoa(number))}
		client.Produce(context.Background(), record, func(record *kgo.Record, err error) {
			if err != nil {
				fmt.Printf("failed %d %v\n", number, err)
			} else {
				fmt.Printf("acked %d %d\n", number, record.Offset)
			}
		})
	}
}
