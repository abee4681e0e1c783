//! Replica sets as a pure state machine: messages, ticks and completions go in; messages, writes and decisions come out.
