// Command etcd is one etcd member for the tests: the real server, embedded, without fsync, since
// its data lives no longer than a test.
//
// Its flags are a subset of stock etcd's, so that a stock etcd in KUBEBUILDER_ASSETS can stand in.
package main

import (
	"flag"
	"log"
	"net/url"
	"os"
	"os/signal"
	"syscall"

	"go.etcd.io/etcd/server/v3/embed"
)

func main() {
	dataDir := flag.String("data-dir", "", "folder for the data")
	listenClient := flag.String("listen-client-urls", "", "URL to serve clients on, such as http://127.0.0.1:2379")
	advertiseClient := flag.String("advertise-client-urls", "", "URL to tell clients, usually the same")
	listenPeer := flag.String("listen-peer-urls", "", "URL for peers, of which there are none")
	flag.Parse()

	config := embed.NewConfig()
	config.Dir = *dataDir
	config.UnsafeNoFsync = true
	config.LogLevel = "warn"
	config.ListenClientUrls = urls(*listenClient)
	config.AdvertiseClientUrls = urls(*advertiseClient)
	config.ListenPeerUrls = urls(*listenPeer)
	config.AdvertisePeerUrls = config.ListenPeerUrls
	config.InitialCluster = config.InitialClusterFromName(config.Name)

	server, err := embed.StartEtcd(config)
	if err != nil {
		log.Fatal(err)
	}
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, syscall.SIGINT, syscall.SIGTERM)
	select {
	case <-stop:
		server.Close()
	case err := <-server.Err():
		log.Fatal(err)
	}
}

func urls(text string) []url.URL {
	parsed, err := url.Parse(text)
	if err != nil || parsed.Host == "" {
		log.Fatalf("not a URL with a host: %q", text)
	}
	return []url.URL{*parsed}
}
