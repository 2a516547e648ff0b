//! A whole server in this process, and peers with certificates of their own over QUIC.

mod backups;
mod cluster;
mod jobs;
mod leases;
mod locks;
mod restricted;
mod sessions;
