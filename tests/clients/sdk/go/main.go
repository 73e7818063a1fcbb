// The client that openapi-generator makes for Go, at work.
package main

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"
	"os"

	"example.com/sdk/quorate"
)

// refusal is the problem that a call is refused with, parsed by the client.
func refusal(response *http.Response, err error, code string) quorate.Problem {
	var refused *quorate.GenericOpenAPIError
	if !errors.As(err, &refused) {
		panic(fmt.Sprintf("not refused as %s: %v", code, err))
	}
	problem, ok := refused.Model().(quorate.Problem)
	check(ok && problem.Code == code, fmt.Sprintf("%s, not %s", refused.Body(), code))
	check(response.Header.Get("Content-Type") == "application/problem+json", "the type of a problem")
	return problem
}

func check(holds bool, what string) {
	if !holds {
		panic(what)
	}
}

func must[T any](answer T, _ *http.Response, err error) T {
	if err != nil {
		panic(err)
	}
	return answer
}

func main() {
	configuration := quorate.NewConfiguration()
	configuration.Servers = quorate.ServerConfigurations{{URL: os.Getenv("QUORATE_SERVER")}}
	client := quorate.NewAPIClient(configuration)
	ctx := context.Background()
	if key := os.Getenv("QUORATE_API_KEY"); key != "" {
		ctx = context.WithValue(ctx, quorate.ContextAccessToken, key)
	}
	random := make([]byte, 4)
	rand.Read(random)
	name := "sdk:go:" + hex.EncodeToString(random)

	// Locks.
	ask := quorate.NewAcquireLock()
	ask.SetOwner("first")
	ask.SetTtlMs(10_000)
	lease := must(client.LocksAPI.AcquireLock(ctx, name).AcquireLock(*ask).Execute())
	check(lease.GetOwner() == "first" && lease.FencingToken > 0 && lease.FencingToken < 1<<53, "a lease")

	_, response, err := client.LocksAPI.AcquireLock(ctx, name).AcquireLock(*quorate.NewAcquireLock()).Execute()
	problem := refusal(response, err, "lock_held")
	check(problem.Holder.GetOwner() == "first" && problem.Holder.GetFencingToken() == lease.FencingToken, "its holder")
	check(problem.Nodes.Total == 3, "the tally of nodes")

	wrong := quorate.NewAcquireLock()
	wrong.SetTtlMs(1_000_000_000)
	_, response, err = client.LocksAPI.AcquireLock(ctx, name).AcquireLock(*wrong).Execute()
	check(refusal(response, err, "invalid_request").Errors[0].Field == "ttl_ms", "what was wrong")

	extend := quorate.NewExtend(lease.LeaseId)
	extend.SetTtlMs(20_000)
	extended := must(client.LocksAPI.ExtendLock(ctx, name).Extend(*extend).Execute())
	check(extended.ValidityMs > 10_000 && extended.FencingToken == lease.FencingToken, "an extension")
	release := *quorate.NewRelease()
	release.SetLeaseId(lease.LeaseId)
	check(must(client.LocksAPI.ReleaseLock(ctx, name).Release(release).Execute()).Released, "a release")
	check(!must(client.LocksAPI.ReleaseLock(ctx, name).Release(release).Execute()).Released, "a second release")
	_, response, err = client.LocksAPI.ExtendLock(ctx, name).Extend(*extend).Execute()
	refusal(response, err, "lease_lost")

	// Several at once.
	names := []string{name, name + ":b"}
	several := must(client.MultilocksAPI.AcquireMultilock(ctx).AcquireMultilock(*quorate.NewAcquireMultilock(names)).Execute())
	check(several.FencingTokens[name] > lease.FencingToken, "a token for each")
	back := quorate.NewReleaseMultilock(names)
	back.SetLeaseId(several.LeaseId)
	check(must(client.MultilocksAPI.ReleaseMultilock(ctx).ReleaseMultilock(*back).Execute()).Released, "all given back")

	// Semaphores.
	two := quorate.NewAcquireSemaphore(3)
	two.SetPermits(2)
	permits := must(client.SemaphoresAPI.AcquireSemaphore(ctx, name).AcquireSemaphore(*two).Execute())
	check(len(permits.Slots) == 2, "two permits")
	_, response, err = client.SemaphoresAPI.AcquireSemaphore(ctx, name).AcquireSemaphore(*two).Execute()
	check(len(refusal(response, err, "semaphore_full").Holders[0].Slots) == 2, "who has them")
	release.SetLeaseId(permits.LeaseId)
	check(must(client.SemaphoresAPI.ReleaseSemaphore(ctx, name).Release(release).Execute()).Released, "permits given back")

	// Elections.
	campaign := *quorate.NewCampaign("host-1")
	leadership := must(client.ElectionsAPI.Campaign(ctx, name).Campaign(campaign).Execute())
	_, response, err = client.ElectionsAPI.Campaign(ctx, name).Campaign(*quorate.NewCampaign("host-2")).Execute()
	check(refusal(response, err, "election_lost").Holder.GetCandidate() == "host-1", "who leads")
	proclaim := *quorate.NewProclaim(leadership.LeaseId, "10.0.0.1")
	must(client.ElectionsAPI.Proclaim(ctx, name).Proclaim(proclaim).Execute())
	state := must(client.ElectionsAPI.GetLeader(ctx, name).Execute())
	check(state.GetLeader() == "host-1" && state.GetValue() == "10.0.0.1" && state.GetTerm() == leadership.Term, "the leader")
	release.SetLeaseId(leadership.LeaseId)
	check(must(client.ElectionsAPI.Resign(ctx, name).Release(release).Execute()).Released, "resigned")
	state = must(client.ElectionsAPI.GetLeader(ctx, name).After(state.Revision).WaitMs(1000).Execute())
	check(!state.HasLeader(), "vacant")

	check(len(must(client.ServiceAPI.ListNodes(ctx).Execute()).Nodes) == 3, "the nodes")
	fmt.Println("ok")
}
