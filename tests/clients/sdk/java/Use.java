import java.util.Map;
import java.util.Set;
import java.util.UUID;
import org.openapitools.client.ApiClient;
import org.openapitools.client.ApiException;
import org.openapitools.client.api.ElectionsApi;
import org.openapitools.client.api.LocksApi;
import org.openapitools.client.api.MultilocksApi;
import org.openapitools.client.api.SemaphoresApi;
import org.openapitools.client.api.ServiceApi;
import org.openapitools.client.model.AcquireLock;
import org.openapitools.client.model.AcquireMultilock;
import org.openapitools.client.model.AcquireSemaphore;
import org.openapitools.client.model.Campaign;
import org.openapitools.client.model.Extend;
import org.openapitools.client.model.Problem;
import org.openapitools.client.model.Proclaim;
import org.openapitools.client.model.Release;
import org.openapitools.client.model.ReleaseMultilock;

/** The client that openapi-generator makes for Java (library native), at work. */
public class Use {
  interface Call {
    void run() throws ApiException;
  }

  /** The problem that a call is refused with, parsed by the client's mapper. */
  static Problem refusal(ApiClient client, Call call, String code) throws Exception {
    try {
      call.run();
    } catch (ApiException refused) {
      Problem problem = client.getObjectMapper().readValue(refused.getResponseBody(), Problem.class);
      check(problem.getCode().equals(code) && problem.getStatus() == refused.getCode(), problem.toString());
      return problem;
    }
    throw new AssertionError("not refused as " + code);
  }

  static void check(boolean holds, String what) {
    if (!holds) throw new AssertionError(what);
  }

  public static void main(String[] args) throws Exception {
    ApiClient client = new ApiClient();
    client.updateBaseUri(System.getenv("QUORATE_SERVER"));
    String key = System.getenv("QUORATE_API_KEY");
    if (key != null) client.setRequestInterceptor(request -> request.header("Authorization", "Bearer " + key));
    String name = "sdk:java:" + UUID.randomUUID();

    var locks = new LocksApi(client);
    var ask = new AcquireLock().owner("first").ttlMs(10_000L).metadata(Map.of("job", "sdk"));
    var lease = locks.acquireLock(name, ask);
    check("first".equals(lease.getOwner()) && lease.getFencingToken() < 1L << 53, "a lease");
    var problem = refusal(client, () -> locks.acquireLock(name, new AcquireLock()), "lock_held");
    check("first".equals(problem.getHolder().getOwner()), "its holder");
    check(problem.getHolder().getFencingToken().equals(lease.getFencingToken()), "its token");
    check(problem.getNodes().getTotal() == 3, "the tally of nodes");
    var wrong = new AcquireLock().ttlMs(1_000_000_000L);
    problem = refusal(client, () -> locks.acquireLock(name, wrong), "invalid_request");
    check("ttl_ms".equals(problem.getErrors().get(0).getField()), "what was wrong");
    var extend = new Extend().leaseId(lease.getLeaseId()).ttlMs(20_000L);
    check(locks.extendLock(name, extend).getValidityMs() > 10_000, "an extension");
    check(locks.getLock(name, null, null).getMetadata().equals(Map.of("job", "sdk")), "metadata");
    check(locks.releaseLock(name, new Release().leaseId(lease.getLeaseId())).getReleased(), "a release");
    refusal(client, () -> locks.extendLock(name, extend), "lease_lost");

    var multilocks = new MultilocksApi(client);
    var names = Set.of(name, name + ":b");
    var several = multilocks.acquireMultilock(new AcquireMultilock().names(names));
    check(several.getFencingTokens().get(name) > lease.getFencingToken(), "a token for each");
    var back = new ReleaseMultilock().names(names).leaseId(several.getLeaseId());
    check(multilocks.releaseMultilock(back).getReleased(), "all given back");

    var semaphores = new SemaphoresApi(client);
    var two = new AcquireSemaphore().limit(3).permits(2);
    var permits = semaphores.acquireSemaphore(name, two);
    check(permits.getSlots().size() == 2, "two permits");
    problem = refusal(client, () -> semaphores.acquireSemaphore(name, two), "semaphore_full");
    check(problem.getHolders().get(0).getSlots().size() == 2, "who has them");
    check(semaphores.releaseSemaphore(name, new Release().leaseId(permits.getLeaseId())).getReleased(), "given back");

    var elections = new ElectionsApi(client);
    var leadership = elections.campaign(name, new Campaign().candidate("host-1"));
    problem = refusal(client, () -> elections.campaign(name, new Campaign().candidate("host-2")), "election_lost");
    check("host-1".equals(problem.getHolder().getCandidate()), "who leads");
    elections.proclaim(name, new Proclaim().leaseId(leadership.getLeaseId()).value("10.0.0.1"));
    var state = elections.getLeader(name, null, null);
    check("host-1".equals(state.getLeader()) && "10.0.0.1".equals(state.getValue()), "the leader");
    check(state.getTerm().equals(leadership.getTerm()), "its term");
    check(elections.resign(name, new Release().leaseId(leadership.getLeaseId())).getReleased(), "resigned");
    check(elections.getLeader(name, state.getRevision(), 1000L).getLeader() == null, "vacant");

    check(new ServiceApi(client).listNodes().getNodes().size() == 3, "the nodes");
    System.out.println("ok");
  }
}
