"""The numbers that others count are on /metrics as they are at each scrape."""

from prometheus_client import generate_latest

from scheduler_extender.http.metrics import Metrics


def test_no_series_says_when_another_was_created() -> None:
    metrics = Metrics()
    metrics.requests.labels("filter", "200").inc()
    metrics.seconds.labels("filter").observe(1.0)
    assert "_created" not in generate_latest(metrics.registry).decode()


def test_a_followed_number_is_shown_as_it_is_now() -> None:
    metrics, counted = Metrics(), [0]
    metrics.follow("wakes", "Pods woken", lambda: counted[0])
    for number in (0, 3, 3, 7):
        counted[0] = number
        shown = generate_latest(metrics.registry).decode()
        assert f"gpu_topology_wakes_total {float(number)}" in shown
