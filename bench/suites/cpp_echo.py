"""TCP echo servers in C++ (ours on epoll and on io_uring), raw epoll (the reference), Asio, Go"""

from harness.echo import METRICS, Load, LoadGenerator, ServerSpec
from harness.model import BenchError, Group, Plan, Subject, missing
from harness.registry import Context

# The groups in the order of their weight: a short budget measures the first ones.
LOADS = [
    Load("64 B x 64 connections", 64),
    Load("64 B x 1000 connections", 1000),
    Load("64 B x 1 connection", 1, busy=True),
    Load("64 B x 8 connections", 8, busy=True),
    Load("64 B x 64 connections, 16 deep", 64, depth=16),
    Load("64 KiB x 16 connections", 16, size=64 * 1024),
    Load("16 KiB x 64 connections", 64, size=16 * 1024),
    Load("16 KiB x 1 connection", 1, size=16 * 1024, busy=True),
    Load("16 KiB x 1000 connections", 1000, size=16 * 1024),
]
NOT_QUICK = {"64 B x 8 connections", "16 KiB x 1 connection", "16 KiB x 1000 connections"}
SPIN = Load("64 B x 1 connection, 50 us spin", 1, busy=True)
SPIN_US = 50


def plan(context: Context) -> Plan:
    load_program = context.builder.program("echo_load")
    if load_program is None:
        raise BenchError("echo_load is not built: run without --no-build")
    seconds, warm_up = (0.2, 0.06) if context.quick else (0.5, 0.15)
    generator = LoadGenerator(load_program, context.cores, seconds, warm_up)

    def subject(
        load: Load, name: str, program: str, *words: str, ours: bool = False, **env: str
    ) -> Subject:
        path = context.builder.program(program)
        if path is None:
            return missing(name, f"{program} is not built: see what CMake says of it", ours)
        spec = ServerSpec.of(path, *words, env=env)
        return Subject(name, lambda: generator.measure(spec, load), ours)

    def group(load: Load, subjects: list[Subject]) -> Group:
        return Group(
            load.case,
            subjects,
            METRICS,
            reference_every=3 if context.quick else 2,
            seconds=seconds + warm_up + 0.15,
        )

    def own_buffers(load: Load) -> list[Subject]:
        if context.quick:
            return []
        words = ("{port}", "own")
        return [subject(load, "runloom, own buffers", "echo_runloom", *words, ours=True)]

    def all_servers(load: Load) -> list[Subject]:
        return [
            subject(load, "raw epoll", "echo_epoll", "-p", "{port}"),
            subject(load, "runloom", "echo_runloom", "{port}", ours=True),
            subject(
                load,
                "runloom on io_uring",
                "echo_runloom",
                "{port}",
                ours=True,
                RUNLOOM_NETPOLL="io_uring",
            ),
            *own_buffers(load),
            subject(load, "Boost.Asio", "echo_asio", "{port}"),
            subject(load, "Boost.Fiber", "echo_boost_fiber", "{port}"),
            subject(load, "Go", "echo_go", "{port}", GOMAXPROCS="1"),
            # Its 4 KiB provided buffers are for small messages, its own buffers for large ones.
            subject(
                load,
                "raw io_uring",
                "echo_uring",
                *("-p", "{port}", "-m", "multishot" if load.size <= 4096 else "oneshot"),
            ),
        ]

    groups = [
        group(load, all_servers(load))
        for load in LOADS
        if not (context.quick and load.case in NOT_QUICK)
    ]
    groups.insert(
        3,
        group(
            SPIN,
            [
                subject(SPIN, "raw epoll", "echo_epoll", "-p", "{port}"),
                subject(
                    SPIN,
                    "runloom",
                    "echo_runloom",
                    "{port}",
                    ours=True,
                    RUNLOOM_SPIN_US=str(SPIN_US),
                ),
                subject(
                    SPIN, "raw epoll, spinning", "echo_epoll", "-p", "{port}", "-k", str(SPIN_US)
                ),
            ],
        ),
    )
    return Plan(groups, [context.builder.versions], end_round=generator.servers.stop_all)
