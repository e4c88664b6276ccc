import java.io.IOException;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Locale;
import java.util.LongSummaryStatistics;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.ScheduledExecutorService;
import java.util.concurrent.Semaphore;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.function.IntConsumer;
import org.apache.zookeeper.CreateMode;
import org.apache.zookeeper.KeeperException;
import org.apache.zookeeper.KeeperException.Code;
import org.apache.zookeeper.Op;
import org.apache.zookeeper.Watcher.Event.KeeperState;
import org.apache.zookeeper.ZooDefs.Ids;
import org.apache.zookeeper.ZooKeeper;

/**
 * Does to ZooKeeper what bench/workloads.py and bench/failover.py do to metaray.
 *
 * <pre>
 * ZkLoad HOST:PORT,HOST:PORT,... WORKLOAD...
 *
 * put:CALLERS:SECONDS             set the value of single nodes
 * commit:CALLERS:SECONDS:BATCH    set consumer offsets, so many in one multi
 * read:CALLERS:SECONDS            sync, then read, of single nodes
 * local-read:CALLERS:SECONDS      read single nodes from the session's own server
 * failover:CALLERS:SECONDS:PID    kill -9 this process, the leader, while callers write
 * </pre>
 *
 * Workloads run in the order given; each prints one line of JSON when it is over. A caller has one
 * call under way and makes the next when it has ended. What ends within so many seconds is counted,
 * after one second that is not. Nodes are made beforehand: ZooKeeper writes only what is there.
 */
final class ZkLoad {
    static final long SECOND = 1_000_000_000L;
    static final long WARM = SECOND;
    static final int KEYS = 10_000; // that the writers of one workload write to
    static final int READ_KEYS = 100;
    static final byte[] VALUE = "v".repeat(120).getBytes();
    static final int PARTITIONS = 16; // of a topic
    static final int SESSIONS_MAX = 10; // callers share sessions, as the tasks of a broker would
    static final int FAILOVER_SESSIONS = 4; // each finds its way by itself; more end later
    static final int FAILOVER_KEYS = 50; // of each writer
    static final long UNDER_LOAD = SECOND / 2;
    static final int SESSION_MS = 30_000;
    static final int CONNECT_SECONDS = 10;
    static final int PREPARE_SECONDS = 60;
    static final int CREATING_MAX = 500; // nodes under way while all are made
    static final int LAST_CALLS_SECONDS = 5; // for what is under way when the time is over
    static final int ERROR_PAUSE_MS = 10;
    static final int CLOSE_MS = 5_000;

    /**
     * 3.8.0 loses a wake-up now and then (ZOOKEEPER-4537): a server with one request under way then
     * answers when the next one comes, whoever sends it. A look at each server this often, by a
     * session of its own and not measured, keeps that from counting against it.
     */
    static final int LOOK_MS = 100;

    final String[] servers;
    final Set<String> made = new HashSet<>();
    final ScheduledExecutorService timer =
            Executors.newSingleThreadScheduledExecutor(
                    task -> {
                        Thread thread = new Thread(task, "timer");
                        thread.setDaemon(true);
                        return thread;
                    });

    ZkLoad(String servers) {
        this.servers = servers.split(",");
    }

    record Workload(String kind, int callers, double seconds, int of) {
        static Workload parse(String word) {
            String[] parts = word.split(":");
            int fields =
                    switch (parts[0]) {
                        case "put", "read", "local-read" -> 3;
                        case "commit", "failover" -> 4;
                        default -> 0;
                    };
            if (parts.length != fields) {
                throw new IllegalArgumentException("no workload: " + word);
            }
            int callers = Integer.parseInt(parts[1]);
            double seconds = Double.parseDouble(parts[2]);
            int of = fields == 4 ? Integer.parseInt(parts[3]) : 1;
            if (callers < 1 || seconds <= 0 || of < 1) {
                throw new IllegalArgumentException("not positive: " + word);
            }
            return new Workload(parts[0], callers, seconds, of);
        }
    }

    /** The turn-th call of a caller; tells its result code when it has ended. */
    interface Call {
        void start(ZooKeeper session, int caller, int turn, IntConsumer done);
    }

    Call callOf(Workload w) {
        switch (w.kind) {
            case "put":
                return (session, caller, turn, done) ->
                        session.setData(
                                "/bench/" + (caller * 7919L + turn) % KEYS,
                                VALUE,
                                -1,
                                (code, path, context, stat) -> done.accept(code),
                                null);
            case "commit":
                List<List<String>> names = new ArrayList<>();
                for (int caller = 0; caller < w.callers; caller++) {
                    names.add(offsets(caller, w.of));
                }
                return (session, caller, turn, done) -> {
                    byte[] offset = Integer.toString(turn).getBytes();
                    List<Op> operations = new ArrayList<>(w.of);
                    for (String name : names.get(caller)) {
                        operations.add(Op.setData(name, offset, -1));
                    }
                    session.multi(
                            operations, (code, path, context, results) -> done.accept(code), null);
                };
            default:
                boolean local = w.kind.equals("local-read");
                return (session, caller, turn, done) -> {
                    String path = "/bench/" + (caller + turn) % READ_KEYS;
                    // A session's requests are answered in order: the read need not wait here for
                    // the sync, and takes its result along.
                    AtomicInteger synced = new AtomicInteger();
                    if (!local) {
                        session.sync(path, (code, at, context) -> synced.set(code), null);
                    }
                    session.getData(
                            path,
                            false,
                            (code, at, context, data, stat) ->
                                    done.accept(code == 0 ? synced.get() : code),
                            null);
                };
        }
    }

    static List<String> offsets(int caller, int batch) {
        List<String> names = new ArrayList<>(batch);
        for (int each = 0; each < batch; each++) {
            names.add(
                    "/offset/group-" + caller + "/topic-" + each / PARTITIONS + "-" + each % PARTITIONS);
        }
        return names;
    }

    ZooKeeper connect(String where) throws IOException, InterruptedException {
        CountDownLatch connected = new CountDownLatch(1);
        ZooKeeper session =
                new ZooKeeper(
                        where,
                        SESSION_MS,
                        event -> {
                            if (event.getState() == KeeperState.SyncConnected) {
                                connected.countDown();
                            }
                        });
        if (!connected.await(CONNECT_SECONDS, TimeUnit.SECONDS)) {
            session.close(CLOSE_MS);
            throw new IOException("no session at " + where);
        }
        return session;
    }

    /** Makes the nodes that the workload needs, and those above them, unless they were made. */
    void prepare(ZooKeeper session, Workload w) throws Exception {
        List<String> wanted = new ArrayList<>();
        switch (w.kind) {
            case "commit":
                for (int caller = 0; caller < w.callers; caller++) {
                    wanted.addAll(offsets(caller, w.of));
                }
                break;
            case "failover":
                for (int each = 0; each < w.callers * FAILOVER_KEYS; each++) {
                    wanted.add("/failover/" + each / FAILOVER_KEYS + "-" + each % FAILOVER_KEYS);
                }
                break;
            default:
                for (int each = 0; each < (w.kind.equals("put") ? KEYS : READ_KEYS); each++) {
                    wanted.add("/bench/" + each);
                }
        }
        Semaphore room = new Semaphore(CREATING_MAX);
        AtomicInteger failed = new AtomicInteger();
        for (String path : wanted) {
            for (int at = path.indexOf('/', 1); at > 0; at = path.indexOf('/', at + 1)) {
                String above = path.substring(0, at);
                if (made.add(above)) {
                    try {
                        session.create(above, new byte[0], Ids.OPEN_ACL_UNSAFE, CreateMode.PERSISTENT);
                    } catch (KeeperException.NodeExistsException there) {
                        continue; // made by a run before
                    }
                }
            }
            if (!made.add(path)) {
                continue;
            }
            if (!room.tryAcquire(PREPARE_SECONDS, TimeUnit.SECONDS)) {
                throw new IOException("nodes are not made in time");
            }
            session.create(
                    path,
                    VALUE,
                    Ids.OPEN_ACL_UNSAFE,
                    CreateMode.PERSISTENT,
                    (code, at, context, name) -> {
                        if (code != 0 && code != Code.NODEEXISTS.intValue()) {
                            failed.set(code);
                        }
                        room.release();
                    },
                    null);
        }
        if (!room.tryAcquire(CREATING_MAX, PREPARE_SECONDS, TimeUnit.SECONDS)) {
            throw new IOException("nodes are not made in time");
        }
        if (failed.get() != 0) {
            throw KeeperException.create(Code.get(failed.get()));
        }
    }

    /** One caller of a workload that is measured for a time. Its callbacks come from one thread. */
    final class Caller {
        final ZooKeeper session;
        final int number;
        final Call call;
        final long from;
        final long until;
        final CountDownLatch ended;
        long[] took = new long[1_024];
        int calls;
        int errors;
        int turn;

        Caller(ZooKeeper session, int number, Call call, long from, long until, CountDownLatch ended) {
            this.session = session;
            this.number = number;
            this.call = call;
            this.from = from;
            this.until = until;
            this.ended = ended;
        }

        void next() {
            long begun = System.nanoTime();
            if (begun >= until) {
                ended.countDown();
                return;
            }
            call.start(session, number, turn++, code -> done(begun, code));
        }

        void done(long begun, int code) {
            long now = System.nanoTime();
            if (code != 0) {
                failed(code);
                timer.schedule(this::next, ERROR_PAUSE_MS, TimeUnit.MILLISECONDS);
                return;
            }
            if (from <= now && now <= until) {
                succeeded(now - begun);
            }
            next();
        }

        synchronized void failed(int code) {
            if (errors++ == 0) {
                System.err.println("caller " + number + ": " + Code.get(code));
            }
        }

        synchronized void succeeded(long nanos) {
            if (calls == took.length) {
                took = Arrays.copyOf(took, calls * 2);
            }
            took[calls++] = nanos;
        }

        synchronized long[] all() {
            return Arrays.copyOf(took, calls);
        }

        synchronized int errors() {
            return errors;
        }
    }

    String drive(List<ZooKeeper> sessions, Workload w) throws InterruptedException {
        Call call = callOf(w);
        CountDownLatch ended = new CountDownLatch(w.callers);
        long from = System.nanoTime() + WARM;
        long until = from + (long) (w.seconds * SECOND);
        List<Caller> callers = new ArrayList<>();
        for (int number = 0; number < w.callers; number++) {
            ZooKeeper session = sessions.get(number % sessions.size());
            callers.add(new Caller(session, number, call, from, until, ended));
        }
        callers.forEach(Caller::next);
        long last = until - System.nanoTime() + LAST_CALLS_SECONDS * SECOND;
        int errors = 0;
        if (!ended.await(last, TimeUnit.NANOSECONDS)) {
            errors += ended.getCount(); // calls that were not answered at all
        }
        long[] took = callers.stream().flatMapToLong(each -> Arrays.stream(each.all())).sorted().toArray();
        for (Caller each : callers) {
            errors += each.errors();
        }
        int calls = took.length;
        return String.format(
                Locale.ROOT,
                "{\"ops_per_s\": %.3f, \"p50_ms\": %.4f, \"p99_ms\": %.4f, \"calls\": %d, \"errors\": %d}",
                (double) calls * (w.kind.equals("commit") ? w.of : 1) / w.seconds,
                calls == 0 ? 0 : took[calls / 2] / 1e6,
                calls == 0 ? 0 : took[(int) (calls * 99L / 100)] / 1e6,
                calls,
                errors);
    }

    record Ack(int caller, long begun, long ended) {}

    /** One caller that writes until it is told to stop, and tells of every write. */
    void write(ZooKeeper session, int number, int turn, BlockingQueue<Ack> acks, CountDownLatch stop) {
        if (stop.getCount() == 0) {
            return;
        }
        long begun = System.nanoTime();
        session.setData(
                "/failover/" + number + "-" + turn % FAILOVER_KEYS,
                VALUE,
                -1,
                (code, path, context, stat) -> {
                    if (code == 0) {
                        acks.add(new Ack(number, begun, System.nanoTime()));
                        write(session, number, turn + 1, acks, stop);
                    } else {
                        timer.schedule(
                                () -> write(session, number, turn + 1, acks, stop),
                                ERROR_PAUSE_MS,
                                TimeUnit.MILLISECONDS);
                    }
                },
                null);
    }

    /**
     * Kills the leader once every caller has written and half a second more. First: from then to the
     * acknowledgement of the first write that began after it. All: until every caller has had such a
     * write acknowledged.
     */
    String failover(List<ZooKeeper> sessions, Workload w) throws InterruptedException {
        long limit = System.nanoTime() + (long) (w.seconds * SECOND);
        BlockingQueue<Ack> acks = new LinkedBlockingQueue<>();
        CountDownLatch stop = new CountDownLatch(1);
        for (int number = 0; number < w.callers; number++) {
            write(sessions.get(number % sessions.size()), number, 0, acks, stop);
        }
        try {
            Set<Integer> written = new HashSet<>();
            long due = Long.MAX_VALUE; // set once all have written
            long killed = 0;
            Map<Integer, Long> served = new HashMap<>();
            while (served.size() < w.callers) {
                long now = System.nanoTime();
                if (now >= limit) {
                    throw new IllegalStateException(
                            served.size() + " of " + w.callers + " callers were served");
                }
                if (killed == 0 && now >= due) {
                    if (!ProcessHandle.of(w.of).orElseThrow().destroyForcibly()) {
                        throw new IllegalStateException("process " + w.of + " cannot be killed");
                    }
                    killed = System.nanoTime();
                }
                long wait = Math.min(limit, killed == 0 ? due : limit) - now;
                Ack one = acks.poll(wait, TimeUnit.NANOSECONDS);
                if (one == null) {
                    continue;
                }
                written.add(one.caller);
                if (due == Long.MAX_VALUE && written.size() == w.callers) {
                    due = now + UNDER_LOAD;
                }
                if (killed != 0 && one.begun >= killed) {
                    served.putIfAbsent(one.caller, one.ended - killed);
                }
            }
            LongSummaryStatistics took =
                    served.values().stream().mapToLong(Long::longValue).summaryStatistics();
            return String.format(
                    Locale.ROOT,
                    "{\"first_ms\": %.3f, \"all_ms\": %.3f}",
                    took.getMin() / 1e6,
                    took.getMax() / 1e6);
        } finally {
            stop.countDown();
        }
    }

    String run(Workload w) throws Exception {
        boolean kills = w.kind.equals("failover");
        List<ZooKeeper> sessions = new ArrayList<>();
        List<ZooKeeper> lookers = new ArrayList<>();
        List<Future<?>> looking = new ArrayList<>();
        try {
            // Spread evenly over the servers, and free to move to another where one is killed.
            int count = Math.min(w.callers, kills ? FAILOVER_SESSIONS : SESSIONS_MAX);
            for (int each = 0; each < count; each++) {
                String where = kills ? String.join(",", servers) : servers[each % servers.length];
                sessions.add(connect(where));
            }
            prepare(sessions.get(0), w);
            if (kills) {
                return failover(sessions, w);
            }
            for (String server : servers) {
                ZooKeeper looker = connect(server);
                lookers.add(looker);
                looking.add(
                        timer.scheduleAtFixedRate(
                                () -> looker.exists("/", false, (code, at, context, stat) -> {}, null),
                                LOOK_MS,
                                LOOK_MS,
                                TimeUnit.MILLISECONDS));
            }
            return drive(sessions, w);
        } finally {
            looking.forEach(each -> each.cancel(false));
            for (ZooKeeper session : sessions) {
                session.close(CLOSE_MS);
            }
            for (ZooKeeper looker : lookers) {
                looker.close(CLOSE_MS);
            }
        }
    }

    public static void main(String[] arguments) throws Exception {
        if (arguments.length < 2) {
            throw new IllegalArgumentException("ZkLoad HOST:PORT,... WORKLOAD...");
        }
        List<Workload> workloads = new ArrayList<>();
        for (int each = 1; each < arguments.length; each++) {
            workloads.add(Workload.parse(arguments[each]));
        }
        ZkLoad load = new ZkLoad(arguments[0]);
        for (Workload each : workloads) {
            System.out.println(load.run(each));
        }
    }
}
