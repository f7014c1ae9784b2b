"""`CSConfig`, the settings of a run that are not the compiler's; applies none of them."""

from __future__ import annotations

from cerebras.pb.declare import declare_message

CSConfig = declare_message("CSConfig", {"use_cbfloat16": "bool"})
