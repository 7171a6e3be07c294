package main

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
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
	all, errRecords := records(entries)
	attachments(ch, all)
	errUses := uses(ch, entries, all)
	errSpool := spool(ch, n.folders(entries))
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

// places is what all lists, and none, say of a place.
func places(entries []conflist.Entry, standard string, of func(conflist.Tracewire) string) []string {
	all := []string{standard}
	for _, e := range entries {
		all = append(all, of(e.Tracewire))
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// folders is the folders of segments.
func (n node) folders(entries []conflist.Entry) []string {
	if len(n.spools) > 0 {
		return n.spools
	}
	standard := filepath.Join(conflist.DefaultStateDir, "spool")
	return places(entries, standard, func(t conflist.Tracewire) string { return t.SpoolDir })
}

// records is all records of the node.
func records(entries []conflist.Entry) (all []cache.Stored, err error) {
	for _, dir := range places(entries, conflist.DefaultStateDir, func(t conflist.Tracewire) string { return t.StateDir }) {
		some, e := cache.Dir{Path: filepath.Join(dir, "attachments")}.List()
		all, err = append(all, some...), errors.Join(err, e)
	}
	return all, err
}

// attachments counts records by network and state.
func attachments(ch chan<- prometheus.Metric, records []cache.Stored) {
	count := map[[2]string]float64{}
	for _, r := range records {
		count[[2]string{r.Network, string(r.State)}]++
	}
	for k, n := range count {
		gauge(ch, descAttachments, n, k[0], k[1])
	}
}

// uses tells of the range sets of each network that has addresses: by its list,
// or where it has none any more by the configuration of its newest record.
func uses(ch chan<- prometheus.Metric, entries []conflist.Entry, records []cache.Stored) (err error) {
	told := map[string]bool{}
	tell := func(network string, doc *conflist.Value) {
		if told[network] || network == "" || doc.At("ipam").At("type").Text() != "host-local" {
			return
		}
		told[network] = true
		all, e := ipam.Parse(doc, nil).Uses(network)
		err = errors.Join(err, e)
		for _, u := range all {
			gauge(ch, descUsed, float64(u.Used), network, u.Ranges)
			gauge(ch, descCapacity, float64(u.Total), network, u.Ranges)
		}
	}
	for _, e := range entries {
		tell(e.Name, e.Doc)
	}
	slices.SortFunc(records, func(a, b cache.Stored) int { return b.Began.Compare(a.Began) })
	for _, r := range records {
		tell(r.Network, conflist.Read(r.Conf))
	}
	return err
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
