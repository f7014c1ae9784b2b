"""`CSConfig`, settings of a run other than the compiler's. They have no effect."""

from __future__ import annotations

from cerebras.pb.declare import declare_message

CSConfig = declare_message("CSConfig", {"use_cbfloat16": "bool"})
