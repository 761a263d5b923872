// Command etcd is one etcd member for the tests: the real server, embedded, without fsync, since
// its data lives no longer than a test.
//
// With -service-account-key it also writes the RSA key that kube-apiserver wants for signing
// service account tokens, so that nothing but Go is needed to start a control plane.
package main

import (
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/pem"
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
	clientURL := flag.String("client-url", "", "URL to serve clients on, such as http://127.0.0.1:2379")
	peerURL := flag.String("peer-url", "", "URL for peers, of which there are none")
	keyFile := flag.String("service-account-key", "", "file to write a new RSA private key to")
	flag.Parse()

	if *keyFile != "" {
		if err := writeKey(*keyFile); err != nil {
			log.Fatal(err)
		}
	}
	config := embed.NewConfig()
	config.Dir = *dataDir
	config.UnsafeNoFsync = true
	config.LogLevel = "warn"
	config.ListenClientUrls = urls(*clientURL)
	config.AdvertiseClientUrls = config.ListenClientUrls
	config.ListenPeerUrls = urls(*peerURL)
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

func writeKey(path string) error {
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		return err
	}
	block := pem.Block{Type: "RSA PRIVATE KEY", Bytes: x509.MarshalPKCS1PrivateKey(key)}
	return os.WriteFile(path, pem.EncodeToMemory(&block), 0o600)
}
