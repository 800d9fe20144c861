// Command kstatus reads objects as JSON, one a line, and prints for each what kstatus makes of it, one word a line.
package main

import (
	"bufio"
	"fmt"
	"io"
	"log"
	"os"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/cli-utils/pkg/kstatus/status"
)

func main() {
	in, out := bufio.NewReader(os.Stdin), bufio.NewWriter(os.Stdout)
	for {
		line, ended := in.ReadBytes('\n')
		if len(line) > 0 {
			fmt.Fprintln(out, compute(line))
		}
		if ended == io.EOF {
			break
		}
		if ended != nil {
			log.Fatal(ended)
		}
	}
	if err := out.Flush(); err != nil {
		log.Fatal(err)
	}
}

func compute(line []byte) status.Status {
	object := &unstructured.Unstructured{}
	if err := object.UnmarshalJSON(line); err != nil {
		log.Fatal(err)
	}
	result, err := status.Compute(object)
	if err != nil {
		log.Fatal(err)
	}
	return result.Status
}
