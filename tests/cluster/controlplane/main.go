// Command inferbench-control-plane is a whole Kubernetes control plane in one file: it plays the role that its name (or
// its first argument) asks for. Tests and the demo run etcd, kube-apiserver, kube-controller-manager and kube-scheduler
// from it, each as a process of its own, unchanged from upstream; on Linux also kubelet and kube-proxy.
package main

import (
	"fmt"
	"os"
	"path/filepath"
	_ "time/tzdata" // time zones for machines without a zone database

	"github.com/spf13/cobra"
	"go.etcd.io/etcd/server/v3/etcdmain"
	"k8s.io/component-base/cli"
	_ "k8s.io/component-base/logs/json/register"
	_ "k8s.io/component-base/metrics/prometheus/clientgo"
	_ "k8s.io/component-base/metrics/prometheus/version"
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
	controllermanager "k8s.io/kubernetes/cmd/kube-controller-manager/app"
	scheduler "k8s.io/kubernetes/cmd/kube-scheduler/app"
)

// Those of a node are added on Linux, the only system that they run on.
var roles = map[string]func() *cobra.Command{
	"kube-apiserver":          apiserver.NewAPIServerCommand,
	"kube-controller-manager": controllermanager.NewControllerManagerCommand,
	"kube-scheduler":          func() *cobra.Command { return scheduler.NewSchedulerCommand() },
}

func main() {
	role := filepath.Base(os.Args[0])
	if _, known := roles[role]; !known && role != "etcd" && len(os.Args) > 1 {
		role = os.Args[1]
		os.Args = os.Args[1:]
	}
	if role == "etcd" {
		etcdmain.Main(append([]string{"etcd"}, os.Args[1:]...))
		return
	}
	newCommand, known := roles[role]
	if !known {
		fmt.Fprintln(os.Stderr, "usage: inferbench-control-plane etcd|kube-apiserver|kube-controller-manager|kube-scheduler [flags]")
		os.Exit(2)
	}
	os.Exit(cli.Run(newCommand()))
}
