//! What is measured.

/// A load, in the order in which they are measured.
#[derive(clap::ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Load {
    /// Small files, listed and then read in no order by several threads.
    Epoch,
    /// A large file from its begin to its end.
    Sequential,
    /// The first 4 KiB of small files, one after the other, each alone in its directory.
    FirstByte,
    /// Small files and large ones, fetched before anybody asks.
    Hydrate,
    /// The same files, written through the mount and put into the bucket.
    Export,
    /// Names of many small objects.
    Import,
    /// 4 KiB somewhere in a large file.
    Random,
    /// One directory of a million keys or so, and jobs over all of them. Only when it is asked for.
    Vast,
}

impl Load {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Epoch => "epoch",
            Self::Sequential => "sequential",
            Self::FirstByte => "first-byte",
            Self::Hydrate => "hydrate",
            Self::Export => "export",
            Self::Import => "import",
            Self::Random => "random",
            Self::Vast => "vast",
        }
    }

    /// What it is, for the line above its table.
    pub(crate) fn title(self) -> &'static str {
        match self {
            Self::Epoch => "Epoch: small files, each once in no order; raw: 64 GETs in flight.",
            Self::Sequential => "Sequential: a large cold file, 1 MiB at a time; raw: ranged GETs.",
            Self::FirstByte => "First byte: 4 KiB of cold small files that nobody could expect.",
            Self::Hydrate => "Hydrate: small files and 4 large ones; raw: 64 GETs in flight.",
            Self::Export => "Export: the same files; raw: 64 PUTs and parts in flight.",
            Self::Import => "Import: names; raw: 16 listings in flight.",
            Self::Random => "Random: 4 KiB somewhere in a large cold file.",
            Self::Vast => "Vast: one directory, its first names, jobs over all; raw: one listing.",
        }
    }

    /// Whether it reads the small files.
    pub(crate) fn has_small(self) -> bool {
        matches!(self, Self::Epoch | Self::Hydrate)
    }

    /// Whether it reads the large file.
    pub(crate) fn has_large(self) -> bool {
        matches!(self, Self::Sequential | Self::Random)
    }
}
