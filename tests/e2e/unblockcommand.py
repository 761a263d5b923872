"""``gpu-topology unblock`` as people call it."""

from scheduler_extender.cli import main
from tests.commands import asked
from tests.e2e.cluster import RealCluster


def unblock(real: RealCluster, pod: str, *words: str, user: str = "admin") -> tuple[int, str, str]:
    """Exit code, output and errors of the command for a pod, with a user's rights."""
    done = asked(main, *words_of(real, pod, *words, user=user))
    return done.returncode, done.stdout, done.stderr


def words_of(real: RealCluster, pod: str, *words: str, user: str = "admin") -> list[str]:
    """What stands behind the program's name on the command line."""
    kubeconfig = str(real.control_plane.kubeconfig(user))
    return ["unblock", pod, "--kubeconfig", kubeconfig, *words]


def until_reserved(real: RealCluster, node: str) -> None:
    """Wait until the extender has heard of a reservation, which the command writes on a pod."""
    page = f"/map/nodes/{node}"
    real.until(lambda: "Reserved for" in real.admin.get(page).text, f"{node} is reserved")
