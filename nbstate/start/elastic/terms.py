"""What the notebooks of a run on several nodes must agree on, and where and how long they meet."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nbstate.options import LaunchOptions

PORT = 29500
"""Where notebooks meet unless told otherwise; also torchrun's choice."""


@dataclass(frozen=True)
class Terms:
    """How the notebooks of one run meet; times in seconds.

    `shared` must be equal in all of them. `interval` and `attempts` say how silence on a connection
    is probed.
    """

    host: str
    port: int
    is_host: bool | None
    run_id: str
    least: int
    most: int
    elastic: bool
    max_restarts: int
    join_timeout: float
    last_call: float
    interval: float
    attempts: int
    shared: dict[str, Any]

    @classmethod
    def of(cls, options: LaunchOptions) -> Terms:
        """Read them from the options of a launch."""
        conf = options.rdzv_conf or {}
        host, port = options.endpoint
        least, most = options.node_range
        join_timeout = float(conf.get("join_timeout", 600.0))
        elastic = options.rdzv_backend == "c10d"
        return cls(
            host=host,
            port=port or PORT,
            is_host=conf.get("is_host") if elastic else options.node_rank == 0,
            run_id=options.rdzv_id,
            least=least,
            most=most,
            elastic=elastic,
            max_restarts=options.max_restarts,
            join_timeout=min(join_timeout, options.timeout or join_timeout),
            last_call=float(conf.get("last_call_timeout", 30.0)),
            interval=float(conf.get("keep_alive_interval", 1.0)),
            attempts=int(conf.get("keep_alive_max_attempt", 5)),
            shared={
                "rdzv_backend": options.rdzv_backend,
                "num_nodes": [least, most] if least != most else most,
                "max_restarts": options.max_restarts,
                "gather_results": options.gather_results,
            },
        )

    @property
    def place(self) -> str:
        """The meeting point as text."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"
