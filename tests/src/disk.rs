//! Small and failing disks for targets. They need root.

use std::{
    env,
    fs::{self, File},
    io::{self, Write},
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, ensure};

use crate::program::{Said, run, wait_for};

/// A small file system in memory. Dropping it unmounts it.
#[derive(Debug)]
pub struct SmallDisk(PathBuf);

impl SmallDisk {
    /// Mounts one of this size, such as `128m`, at `path`, which is made.
    ///
    /// # Errors
    /// When that is not allowed.
    pub fn mount(path: PathBuf, size: &str) -> Result<Self> {
        fs::create_dir_all(&path)?;
        let size = format!("size={size}");
        run("mount", &[&"-t", &"tmpfs", &"-o", &size, &"millrace-test", &path])?.ok()?;
        Ok(Self(path))
    }

    /// Where it is.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// The file that [`Self::fill`] makes.
    #[must_use]
    pub fn filler(&self) -> PathBuf {
        self.0.join("filler")
    }

    /// Takes all the room that there is; what the system says in the end.
    #[must_use]
    pub fn fill(&self) -> io::Error {
        let piece = vec![1; 1 << 16];
        let mut file = match File::options().create(true).append(true).open(self.filler()) {
            Ok(file) => file,
            Err(error) => return error,
        };
        loop {
            if let Err(error) = file.write_all(&piece) {
                return error;
            }
        }
    }

    /// Gives the room back.
    ///
    /// # Errors
    /// When nothing was filled.
    pub fn clear(&self) -> Result<()> {
        Ok(fs::remove_file(self.filler())?)
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        drop(run("umount", &[&"--lazy", &self.0]));
    }
}

/// A file system on a loop device that can break down. Dropping it unmounts it.
#[derive(Debug)]
pub struct BreakableDisk {
    image: PathBuf,
    path: PathBuf,
}

impl BreakableDisk {
    /// Makes a disk of `bytes` in the file `image`, and mounts it at `path`, which is made. `None`
    /// where there are no loop devices and `MILLRACE_TEST_WITHOUT_LOOP_DEVICES` is set, which is
    /// said.
    ///
    /// # Errors
    /// When that is not allowed, or a program or loop devices are missing.
    #[expect(clippy::print_stderr, reason = "who reads the test's output learns what was skipped")]
    pub fn mount(image: PathBuf, path: PathBuf, bytes: u64) -> Result<Option<Self>> {
        if !fs::exists("/dev/loop-control")? {
            let may_lack = env::var_os("MILLRACE_TEST_WITHOUT_LOOP_DEVICES").is_some();
            ensure!(may_lack, "no /dev/loop-control, so no loop devices");
            eprintln!("SKIPPED: no /dev/loop-control, so no loop devices");
            return Ok(None);
        }
        File::create_new(&image)?.set_len(bytes)?;
        run("mkfs.ext4", &[&"-q", &image])?.ok().context("making a file system")?;
        fs::create_dir_all(&path)?;
        let disk = Self { image, path };
        disk.attach()?;
        Ok(Some(disk))
    }

    /// From now on every read and write there fails with EIO. What was synced is on the disk.
    ///
    /// # Errors
    /// When the file system does not do so.
    pub fn break_down(&self) -> Result<()> {
        // EXT4_IOC_SHUTDOWN with EXT4_GOING_FLAGS_NOLOGFLUSH, as a lost cable would.
        let script = "import fcntl, os, struct, sys\n\
            fcntl.ioctl(os.open(sys.argv[1], os.O_RDONLY), 0x8004587D, struct.pack('I', 2))";
        run("python3", &[&"-c", &script, &self.path])?.ok().map(drop)
    }

    /// Unmounts it as soon as nobody uses it, and mounts it again, which brings it back.
    ///
    /// # Errors
    /// When it stays in use, or cannot be mounted.
    pub fn mend(&self) -> Result<()> {
        wait_for("the disk to be let go of", || {
            run("umount", &[&self.path]).ok().filter(Said::succeeded).map(drop)
        })?;
        self.attach()
    }

    fn attach(&self) -> Result<()> {
        run("mount", &[&"-o", &"loop", &self.image, &self.path])?.ok().map(drop)
    }
}

impl Drop for BreakableDisk {
    fn drop(&mut self) {
        drop(run("umount", &[&"--lazy", &self.path]));
    }
}
