// A folder of chats: uploads, and the form of the preparation.
import "./file_upload.js";
import "./studio_form.js";
