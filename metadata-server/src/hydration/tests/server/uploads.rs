//! What targets do for exports, and how it goes wrong.

use std::{any::Any, fs, sync::Arc};

use bytes::Bytes;
use millrace_object_source::{Bucket, Condition, Metadata, Tag, UploadId};
use millrace_protocol::target::{
    UploadCondition, UploadObject, UploadObjectReply, UploadObjectTo, UploadPart, UploadPartReply,
    UploadPartTo, UploadSource,
};
use millrace_types::{ErrorKind, Failure, LinkId};

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
    pub(super) async fn faulty<T: Send + 'static>(
        &self,
        work: impl Future<Output = Result<T, Failure>>,
    ) -> Result<Box<dyn Any + Send>, Failure> {
        let fault = self.faults.lock().unwrap().pop_front();
        match fault {
            None => Ok(Box::new(work.await?)),
            Some(Fault::Fail(kind)) => Err(kind.into()),
            Some(Fault::LoseAnswer) => {
                work.await?;
                Err(ErrorKind::Unavailable.into())
            }
            Some(Fault::Cut(object)) => {
                work.await?;
                fs::OpenOptions::new().write(true).open(object).unwrap().set_len(1).unwrap();
                Err(ErrorKind::Unavailable.into())
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
                self.open_write(inode).await;
                let size = self.files.lock().unwrap()[&inode].len() as u64;
                self.commit(inode, size).await;
                Ok(Box::new(reply))
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

    pub(super) async fn upload_part(&self, part: UploadPart) -> Result<UploadPartReply, Failure> {
        let bucket = self.bucket_of_link(part.source.link).await;
        self.part_into(&bucket, part).await
    }

    pub(super) async fn upload_part_to(
        &self,
        request: UploadPartTo,
    ) -> Result<UploadPartReply, Failure> {
        let bucket = self.buckets.bucket(&spec_of(&request.bucket).unwrap()).unwrap();
        self.copied_uploads.lock().unwrap().push(request.part.upload_id.clone());
        self.part_into(&bucket, request.part).await
    }

    pub(super) async fn upload_object_to(
        &self,
        request: UploadObjectTo,
    ) -> Result<UploadObjectReply, Failure> {
        let bucket = self.buckets.bucket(&spec_of(&request.bucket).unwrap()).unwrap();
        self.object_into(&bucket, request.object).await
    }

    async fn part_into(
        &self,
        bucket: &Bucket,
        part: UploadPart,
    ) -> Result<UploadPartReply, Failure> {
        let source = &part.source;
        let upload = UploadId::new(part.upload_id)?;
        let body = self.bytes_of(source);
        let put = bucket.put_part(&source.key, &upload, part.part_number, source.offset, body);
        let etag = put.await?.tag.to_string();
        Ok(UploadPartReply { etag, checksum: Default::default() })
    }

    pub(super) async fn upload_object(
        &self,
        object: UploadObject,
    ) -> Result<UploadObjectReply, Failure> {
        let bucket = self.bucket_of_link(object.source.link).await;
        self.object_into(&bucket, object).await
    }

    async fn object_into(
        &self,
        bucket: &Bucket,
        object: UploadObject,
    ) -> Result<UploadObjectReply, Failure> {
        let source = &object.source;
        let condition = match object.condition {
            UploadCondition::Absent => Condition::Absent,
            UploadCondition::Tag(tag) => Condition::Matches(Tag::new(tag)?),
        };
        let metadata = Metadata::new(object.metadata)?;
        let body = self.bytes_of(source);
        let tag = bucket.put_small(&source.key, body, &metadata, &condition).await?;
        Ok(UploadObjectReply { etag: tag.to_string(), checksum: Default::default() })
    }
}
