//! Clients and servers over loopback, in one process; and one that is killed, in another.

mod exchange;
mod raw;
mod refusal;
mod restart;
mod world;
