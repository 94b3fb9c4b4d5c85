"""UDP echo servers in C++, against a loop of recvmmsg and sendmmsg in C (the reference)"""

from harness.echo import DELIVERED, METRICS, Load, LoadGenerator, ServerSpec
from harness.model import BenchError, Group, Plan, Subject, missing
from harness.registry import Context

# The groups in the order of their weight: a short budget measures the first ones.
LOADS = [
    Load("64 B x 8 sockets, 16 outstanding", 8, depth=16),
    Load("64 B x 64 sockets", 64),
    Load("1200 B x 8 sockets, 16 outstanding", 8, size=1200, depth=16),
    Load("64 B x 1 socket", 1, busy=True),
]


def plan(context: Context) -> Plan:
    load_program = context.builder.program("udp_load")
    if load_program is None:
        raise BenchError("udp_load is not built: run without --no-build")
    seconds, warm_up = (0.3, 0.1) if context.quick else (0.6, 0.15)
    generator = LoadGenerator(load_program, context.cores, seconds, warm_up, engines=False)

    def subject(
        load: Load, name: str, program: str, *words: str, ours: bool = False, **env: str
    ) -> Subject:
        path = context.builder.program(program)
        if path is None:
            return missing(name, f"{program} is not built: see what CMake says of it", ours)
        spec = ServerSpec.of(path, *words, udp=True, env=env)
        return Subject(name, lambda: generator.measure(spec, load), ours)

    def group(load: Load) -> Group:
        subjects = [
            subject(load, "recvmmsg loop in C", "echo_udp", "-p", "{port}"),
            subject(load, "runloom", "echo_udp_runloom", "{port}", ours=True),
            subject(
                load,
                "runloom on io_uring",
                "echo_udp_runloom",
                "{port}",
                ours=True,
                RUNLOOM_NETPOLL="io_uring",
            ),
            subject(load, "the loop in C on epoll", "echo_udp", "-p", "{port}", "-m", "epoll"),
            subject(load, "runloom, one by one", "echo_udp_runloom", "{port}", "single", ours=True),
        ]
        return Group(
            load.case,
            subjects,
            [*METRICS, DELIVERED],
            reference_every=2,
            seconds=seconds + warm_up + 0.15,
        )

    return Plan(
        [group(load) for load in LOADS],
        [context.builder.versions],
        end_round=generator.servers.stop_all,
    )
