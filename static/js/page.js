// What every page does in the browser: theme, dialogs, safe double clicks, parts that fetch themselves again, upload, keys.
// Each behaviour hangs on data- attributes; a page without JavaScript still works.
import { watchTheme } from "./theme.js";
import { watchDialogs } from "./dialogs.js";
import { watchForms } from "./forms.js";
import { watchRefresh } from "./refresh.js";
import { watchInbox } from "./inbox.js";
import { watchUploads } from "./uploads.js";

watchTheme();
watchDialogs();
watchForms();
watchRefresh();
watchInbox();
watchUploads();
document.querySelector("[data-focus]")?.focus({ preventScroll: false });
