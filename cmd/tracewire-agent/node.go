package main

import (
	"errors"
	"io/fs"
	"os"
	"strings"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tracewire/tracewire/chain/cache"
	"github.com/tracewire/tracewire/conflist"
	"github.com/tracewire/tracewire/ipam"
	"github.com/tracewire/tracewire/trace"
	"github.com/tracewire/tracewire/trace/read"
)

// node is what is there at the moment of a scrape: records, reservations and
// spool. What cannot be read is told of and keeps nothing else out.
type node struct {
	lists  func() ([]conflist.Entry, error) // our entries of the node's lists
	spools []string                         // folders, instead of what the lists say; empty for that
}

var (
	descAttachments = prometheus.NewDesc("tracewire_attachments",
		"Attachments that have a record, by what the record tells.", []string{"network", "state"}, nil)
	descUsed = prometheus.NewDesc("tracewire_ipam_used_addresses",
		"Addresses of a range set that have a reservation.", []string{"network", "range"}, nil)
	descCapacity = prometheus.NewDesc("tracewire_ipam_capacity_addresses",
		"Addresses of a range set that can be given.", []string{"network", "range"}, nil)
	descSpool = prometheus.NewDesc("tracewire_spool_bytes",
		"Size of the spool's segments.", nil, nil)
	descDropped = prometheus.NewDesc("tracewire_dropped_total",
		"Operations, segments of the spool and rotated logs that were lost since the node started.", nil, nil)
	descPolled = prometheus.NewDesc("tracewire_status_polls_total",
		"STATUS operations since the node started; one that brings nothing new has no span.", nil, nil)
	descUnreadable = prometheus.NewDesc("tracewire_unreadable_sources",
		"Sources of these metrics that could not be read.", []string{"source"}, nil)
)

// Describe implements prometheus.Collector.
func (n node) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{descAttachments, descUsed, descCapacity, descSpool, descDropped, descPolled, descUnreadable} {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (n node) Collect(ch chan<- prometheus.Metric) {
	entries, errConf := n.lists()
	nets, told := networks(entries), map[string]bool{}
	var errUses error
	tell := func(network string, doc *conflist.Value) {
		if told[network] {
			return
		}
		ours, err := uses(ch, network, doc)
		told[network], errUses = ours, errors.Join(errUses, err)
	}
	for _, e := range entries {
		tell(e.Name, e.Doc)
	}
	// A network that has no list any more is as its newest record says.
	newest, errRecords := n.records(ch, places(nil, nets, stateDir), told)
	for network, r := range newest {
		tell(network, conflist.Read(r.Conf))
	}
	errSpool := spool(ch, places(n.spools, nets, spoolDir))
	counter(ch, descDropped, trace.DroppedPath)
	counter(ch, descPolled, trace.PolledPath)
	for source, err := range map[string]error{"conflists": errConf, "records": errRecords, "reservations": errUses, "spool": errSpool} {
		broken := 0.0
		if err != nil {
			broken = 1
		}
		gauge(ch, descUnreadable, broken, source)
	}
}

// counter is the plugin's counter in a file.
func counter(ch chan<- prometheus.Metric, d *prometheus.Desc, path string) {
	n := 0.0
	if info, err := os.Lstat(path); err == nil {
		n = float64(info.Size())
	}
	ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, n)
}

func gauge(ch chan<- prometheus.Metric, d *prometheus.Desc, value float64, labels ...string) {
	for i, l := range labels {
		labels[i] = strings.ToValidUTF8(l, "\uFFFD")
	}
	ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, value, labels...)
}

// records counts all records of the node by network and state, hands on the newest
// one of each network that has no addresses by a list, and holds no more.
func (n node) records(ch chan<- prometheus.Metric, dirs []string, told map[string]bool) (newest map[string]cache.Record, err error) {
	count := map[[2]string]float64{}
	newest = map[string]cache.Record{}
	for _, dir := range dirs {
		err = errors.Join(err, cache.In(dir).Each(func(r cache.Stored) {
			count[[2]string{r.Network, string(r.State)}]++
			if !told[r.Network] && !r.Began.Before(newest[r.Network].Began) {
				newest[r.Network] = r.Record
			}
		}))
	}
	for k, n := range count {
		gauge(ch, descAttachments, n, k[0], k[1])
	}
	return newest, err
}

// uses tells of the range sets of a network that has addresses of ours.
func uses(ch chan<- prometheus.Metric, network string, doc *conflist.Value) (ours bool, err error) {
	if network == "" || doc.At("ipam").At("type").Text() != "host-local" {
		return false, nil
	}
	all, err := ipam.Parse(doc, nil).Uses(network)
	for _, u := range all {
		gauge(ch, descUsed, float64(u.Used), network, u.Ranges)
		gauge(ch, descCapacity, float64(u.Total), network, u.Ranges)
	}
	return true, err
}

// spool tells how large the spool is, and what was lost to it.
func spool(ch chan<- prometheus.Metric, dirs []string) (err error) {
	var size int64
	for _, dir := range dirs {
		paths, e := read.Segments(dir)
		if e != nil && !errors.Is(e, fs.ErrNotExist) {
			err = errors.Join(err, e)
		}
		for _, path := range paths {
			if info, e := os.Lstat(path); e == nil {
				size += info.Size()
			}
		}
	}
	gauge(ch, descSpool, float64(size))
	return err
}
