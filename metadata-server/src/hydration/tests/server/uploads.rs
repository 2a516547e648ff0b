//! What targets do for exports, and how it goes wrong.

use std::{
    any::Any,
    fs,
    sync::{Arc, atomic::Ordering},
};

use bytes::Bytes;
use millrace_object_source::{Bucket, Condition, Md5Sum, Metadata, Tag, UploadId};
use millrace_protocol::target::{
    DigestPart, DigestPartReply, StoreObject, StoreObjectReply, UploadCondition, UploadObject,
    UploadObjectReply, UploadObjectTo, UploadPart, UploadPartReply, UploadPartTo, UploadSource,
};
use millrace_types::{Crc32c, ErrorKind, Failure, InodeId, LinkId};

use super::{Fault, SESSION, TestServer, replace};
use crate::{
    command::{self, Command, Opener},
    hydration::{Environment, import::spec_of},
    store::{
        keys,
        records::{self, LinkRecord},
    },
};

impl TestServer {
    /// Does what is asked if that is an upload; otherwise gives the request back.
    pub(super) async fn upload(
        &self,
        request: Box<dyn Any + Send>,
    ) -> Result<Result<Box<dyn Any + Send>, Failure>, Box<dyn Any + Send>> {
        let request = match request.downcast::<UploadPart>() {
            Ok(part) => return Ok(self.faulty(self.upload_part(*part)).await),
            Err(request) => request,
        };
        let request = match request.downcast::<DigestPart>() {
            Ok(_) if self.troubles.are_older.load(Ordering::Relaxed) => {
                return Ok(Err(ErrorKind::NotSupported.into()));
            }
            Ok(part) => return Ok(Ok(Box::new(self.digest_part(&part)))),
            Err(request) => request,
        };
        let request = match request.downcast::<UploadPartTo>() {
            Ok(part) => return Ok(self.faulty(self.upload_part_to(*part)).await),
            Err(request) => request,
        };
        let request = match request.downcast::<StoreObject>() {
            Ok(_) if self.troubles.are_older.load(Ordering::Relaxed) => {
                return Ok(Err(ErrorKind::NotSupported.into()));
            }
            Ok(store) => return Ok(self.faulty(self.store_object(*store)).await),
            Err(request) => request,
        };
        let request = match request.downcast::<UploadObjectTo>() {
            Ok(object) => return Ok(self.faulty(self.upload_object_to(*object)).await),
            Err(request) => request,
        };
        match request.downcast::<UploadObject>() {
            Ok(object) => Ok(self.faulty(self.upload_object(*object)).await),
            Err(request) => Err(request),
        }
    }

    async fn faulty<T: Send + 'static>(
        &self,
        work: impl Future<Output = Result<T, Failure>>,
    ) -> Result<Box<dyn Any + Send>, Failure> {
        let fault = self.faults.lock().unwrap().pop_front();
        match fault {
            None => Ok(Box::new(work.await?)),
            Some(Fault::Fail(kind)) => Err(kind.into()),
            Some(Fault::Stall(time)) => {
                tokio::time::sleep(time).await;
                Ok(Box::new(work.await?))
            }
            Some(Fault::LoseAnswer) => {
                work.await?;
                Err(ErrorKind::Unavailable.into())
            }
            Some(Fault::Cut(object)) => {
                work.await?;
                fs::OpenOptions::new().write(true).open(object).unwrap().set_len(1).unwrap();
                Err(ErrorKind::Unavailable.into())
            }
            Some(Fault::Damage(object)) => {
                work.await?;
                let len = fs::metadata(&object).unwrap().len();
                // With the same metadata.
                fs::write(&object, vec![b'?'; usize::try_from(len).unwrap()]).unwrap();
                Err(ErrorKind::Corrupt.into())
            }
            Some(Fault::Put(object, bytes)) => {
                replace(&object, bytes);
                Ok(Box::new(work.await?))
            }
            Some(Fault::Delete(object)) => {
                fs::remove_file(object).unwrap();
                Ok(Box::new(work.await?))
            }
            Some(Fault::Away(bucket, command)) => {
                work.await?;
                self.execute(*command, false).await.unwrap();
                fs::rename(&bucket, bucket.with_extension("away")).unwrap();
                Err(ErrorKind::Unavailable.into())
            }
            Some(Fault::Meanwhile(command)) => {
                let reply = work.await?;
                self.execute(*command, false).await.unwrap();
                Ok(Box::new(reply))
            }
            Some(Fault::Write(inode)) => {
                let reply = work.await?;
                self.rewrite(inode).await;
                Ok(Box::new(reply))
            }
            Some(Fault::WriteUnheard(inode)) => {
                work.await?;
                self.rewrite(inode).await;
                Err(ErrorKind::Unavailable.into())
            }
            Some(Fault::Truncate(inode)) => {
                let reply = work.await?;
                let opener = Opener { session: SESSION, inode };
                let open = command::OpenWrite { caller: None, opener, truncate: true };
                self.execute(Command::OpenWrite(open), false).await.unwrap();
                self.execute(Command::CloseWrite(opener), false).await.unwrap();
                self.files.lock().unwrap().insert(inode, Vec::new());
                Ok(Box::new(reply))
            }
        }
    }

    fn bytes_of(&self, source: &UploadSource) -> Vec<Bytes> {
        let files = self.files.lock().unwrap();
        let from = usize::try_from(source.offset).unwrap();
        let to = from + usize::try_from(source.len).unwrap();
        vec![Bytes::copy_from_slice(&files[&source.content.inode][from..to])]
    }

    async fn bucket_of_link(&self, link: LinkId) -> Arc<Bucket> {
        let query = self.read(move |view| {
            let record: Option<LinkRecord> = records::read(view, &keys::link(link)).unwrap();
            Ok(record.unwrap())
        });
        let record = query.await.unwrap();
        self.buckets.bucket(&spec_of(&record.bucket).unwrap()).unwrap()
    }

    /// Somebody opens a file for writing, and closes it.
    async fn rewrite(&self, inode: InodeId) {
        self.open_write(inode).await;
        let size = self.files.lock().unwrap()[&inode].len() as u64;
        self.commit(inode, size).await;
    }

    fn digest_part(&self, part: &DigestPart) -> DigestPartReply {
        let mut md5 = part.with_md5.then(Md5Sum::default);
        let bytes = self.bytes_of(&part.source).concat();
        if let Some(sum) = &mut md5 {
            sum.update(&bytes);
        }
        DigestPartReply { checksum: Crc32c::of(&bytes), md5: md5.map(Md5Sum::finish) }
    }

    async fn upload_part(&self, part: UploadPart) -> Result<UploadPartReply, Failure> {
        self.uploads.lock().unwrap().push(part.upload_id.clone());
        let bucket = self.bucket_of_link(part.source.link).await;
        self.part_into(&bucket, part).await
    }

    async fn upload_part_to(&self, request: UploadPartTo) -> Result<UploadPartReply, Failure> {
        let bucket = self.buckets.bucket(&spec_of(&request.bucket).unwrap()).unwrap();
        self.copied_uploads.lock().unwrap().push(request.part.upload_id.clone());
        self.part_into(&bucket, request.part).await
    }

    async fn upload_object_to(
        &self,
        request: UploadObjectTo,
    ) -> Result<UploadObjectReply, Failure> {
        let bucket = self.buckets.bucket(&spec_of(&request.bucket).unwrap()).unwrap();
        let tag = self.object_into(&bucket, request.object).await?;
        Ok(UploadObjectReply { etag: tag.to_string(), checksum: Default::default() })
    }

    async fn store_object(&self, request: StoreObject) -> Result<StoreObjectReply, Failure> {
        let bucket = match &request.bucket {
            None => self.bucket_of_link(request.object.source.link).await,
            Some(bucket) => self.buckets.bucket(&spec_of(bucket).unwrap()).unwrap(),
        };
        let tag = self.object_into(&bucket, request.object).await?;
        Ok(StoreObjectReply { etag: tag.to_string(), is_checked: false })
    }

    async fn part_into(
        &self,
        bucket: &Bucket,
        part: UploadPart,
    ) -> Result<UploadPartReply, Failure> {
        let source = &part.source;
        let upload = UploadId::new(part.upload_id)?;
        let body = self.bytes_of(source);
        let checksum = Crc32c::of(&body.concat());
        let put = bucket.put_part(&source.key, &upload, part.part_number, source.offset, body);
        let etag = put.await?.tag.to_string();
        Ok(UploadPartReply { etag, checksum })
    }

    async fn upload_object(&self, object: UploadObject) -> Result<UploadObjectReply, Failure> {
        let bucket = self.bucket_of_link(object.source.link).await;
        let tag = self.object_into(&bucket, object).await?;
        Ok(UploadObjectReply { etag: tag.to_string(), checksum: Default::default() })
    }

    async fn object_into(&self, bucket: &Bucket, object: UploadObject) -> Result<Tag, Failure> {
        let source = &object.source;
        let condition = match object.condition {
            UploadCondition::Absent => Condition::Absent,
            UploadCondition::Tag(tag) => Condition::Matches(Tag::new(tag)?),
        };
        let metadata = Metadata::new(object.metadata)?;
        let body = self.bytes_of(source);
        Ok(bucket.put_small(&source.key, body, &metadata, &condition).await?.tag)
    }
}
